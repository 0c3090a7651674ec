//! needs f16 wgpu_cooperative_matrix
// 8 x 8 x 8: Apple's GPUs.

const MATRIX: u32 = 8u;
alias Left = coop_mat8x8<f16, A>;
alias Right = coop_mat8x8<f16, B>;
alias Sum = coop_mat8x8<f32, C>;
