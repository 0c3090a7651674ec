//! `activation(gate) * up`, where gate and up cannot share one matrix. Twin: `reference/act_mul.rs`.

use super::activation_slot;
use crate::gpu::{Profile, Variant};
use crate::model::spec::Activation;
use bytemuck::{Pod, Zeroable};

/// Uniform parameters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct ActMulParams {
    /// Width of a row in vectors of four.
    pub width: u32,
    /// Rows for each token of the step: 1, or the experts that each token has.
    pub rows_per_token: u32,
    /// Room.
    pub reserved: [u32; 2],
}

/// The variant for an activation.
pub fn variant(activation: Activation, profile: &Profile) -> Variant {
    Variant {
        kernel: "act_mul",
        slots: vec![("activation", activation_slot(activation))],
        consts: vec![],
        workgroup: [profile.row_lanes(64), 1, 1],
    }
}

/// One lane a vector of four.
pub fn grid(width: usize, rows: usize, profile: &Profile) -> [u32; 3] {
    [width.div_ceil(4 * profile.row_lanes(64) as usize) as u32, rows as u32, 1]
}

/// Every activation.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    Activation::ALL.map(|activation| variant(activation, profile)).to_vec()
}
