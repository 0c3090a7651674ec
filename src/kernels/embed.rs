//! Token ids to rows of the residual stream, one dispatch for each shard of the vocabulary. Twin: `reference/embed.rs`.

use crate::base::DType;
use crate::gpu::{Profile, Variant};
use bytemuck::{Pod, Zeroable};

/// Uniform parameters of one shard.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct EmbedParams {
    /// Blocks of 32 columns.
    pub blocks: u32,
    /// First token of the shard.
    pub first_token: u32,
    /// Tokens in the shard.
    pub token_count: u32,
    /// Room.
    pub reserved: u32,
}

/// The variant for a weight format.
pub fn variant(dtype: DType, profile: &Profile) -> Variant {
    Variant {
        kernel: "embed",
        slots: vec![("weights", dtype.name())],
        consts: vec![],
        workgroup: [profile.row_lanes(32), 1, 1],
    }
}

/// One workgroup a row.
pub fn grid(rows: usize) -> [u32; 3] {
    [rows as u32, 1, 1]
}

/// Every format.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    DType::ALL.into_iter().map(|dtype| variant(dtype, profile)).collect()
}
