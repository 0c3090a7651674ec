//! Rows of activations to int12, where the kernel that made them has not left them so. Twin: `reference/quantize.rs`.

use crate::gpu::{Profile, Variant};
use bytemuck::{Pod, Zeroable};

/// Uniform parameters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct QuantizeParams {
    /// Blocks of 32 columns in a row.
    pub blocks: u32,
    /// Rows for each token of the step: 1, or the experts that each token has.
    pub rows_per_token: u32,
    /// Room.
    pub reserved: [u32; 2],
}

/// The only variant.
pub fn variant(profile: &Profile) -> Variant {
    Variant { kernel: "quantize", slots: vec![], consts: vec![], workgroup: [profile.row_lanes(32), 1, 1] }
}

/// One lane a block.
pub fn grid(blocks: usize, rows: usize, profile: &Profile) -> [u32; 3] {
    [blocks.div_ceil(profile.row_lanes(32) as usize) as u32, rows as u32, 1]
}

/// The only variant.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    vec![variant(profile)]
}
