//! RMSNorm over rows. Twin: `reference/norm.rs`.

use crate::gpu::{Const, Profile, Variant};
use bytemuck::{Pod, Zeroable};

/// Uniform parameters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct NormParams {
    /// Width of a row in vectors of four.
    pub width: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// First sample, if rows are gathered.
    pub first_sample: u32,
    /// Room.
    pub reserved: u32,
}

/// `gather` takes the rows whose logits are wanted instead of all rows.
pub fn variant(gather: bool, profile: &Profile) -> Variant {
    let lanes = profile.row_lanes(64);
    Variant {
        kernel: "norm",
        slots: vec![("reduce", profile.reduce_slot(lanes))],
        consts: vec![("GATHER", Const::Bool(gather))],
        workgroup: [lanes, 1, 1],
    }
}

/// One workgroup a row.
pub fn grid(rows: usize) -> [u32; 3] {
    [rows as u32, 1, 1]
}

/// Both ways to find a row.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    vec![variant(false, profile), variant(true, profile)]
}
