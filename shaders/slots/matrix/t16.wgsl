//! needs f16 wgpu_cooperative_matrix
// 16 x 16 x 16: NVIDIA, AMD and Intel through Vulkan.

const MATRIX: u32 = 16u;
alias Left = coop_mat16x16<f16, A>;
alias Right = coop_mat16x16<f16, B>;
alias Sum = coop_mat16x16<f32, C>;
