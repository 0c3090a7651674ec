//! RMSNorm of all query heads of a token as one row, and of all its key heads as another, before `rope_kv`. Norms of single heads
//! are part of that kernel. Twin: `reference/norm.rs`.

use crate::gpu::{Profile, Variant};
use bytemuck::{Pod, Zeroable};

/// Uniform parameters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct QkNormParams {
    /// Width of all query heads, like all widths here in vectors of four.
    pub query_width: u32,
    /// Width of all key heads.
    pub key_width: u32,
    /// From one row of queries, keys and values to the next.
    pub stride: u32,
    /// Added to the mean squares.
    pub eps: f32,
}

/// The only variant.
pub fn variant(profile: &Profile) -> Variant {
    let lanes = profile.row_lanes(64);
    Variant {
        kernel: "qk_norm",
        slots: vec![("reduce", profile.reduce_slot(lanes))],
        consts: vec![],
        workgroup: [lanes, 1, 1],
    }
}

/// One workgroup for the queries of a row and one for its keys.
pub fn grid(rows: usize) -> [u32; 3] {
    [rows as u32, 2, 1]
}

/// The only variant.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    vec![variant(profile)]
}
