//! `silu(gate) * up`, where gate and up cannot share one matrix. Twin: `reference/act_mul.rs`.

use crate::gpu::{Profile, Variant};
use bytemuck::{Pod, Zeroable};

/// Uniform parameters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct ActMulParams {
    /// Width of a row in vectors of four.
    pub width: u32,
    /// Room.
    pub reserved: [u32; 3],
}

/// The only variant.
pub fn variant(profile: &Profile) -> Variant {
    Variant { kernel: "act_mul", slots: vec![], consts: vec![], workgroup: [profile.row_lanes(64), 1, 1] }
}

/// One lane a vector of four.
pub fn grid(width: usize, rows: usize, profile: &Profile) -> [u32; 3] {
    [width.div_ceil(4 * profile.row_lanes(64) as usize) as u32, rows as u32, 1]
}

/// The only variant.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    vec![variant(profile)]
}
