//! Token ids to rows of the residual stream, one dispatch for each shard of the vocabulary; learned positions are added the same
//! way. Twin: `reference/embed.rs`.

use super::weights;
use crate::base::DType;
use crate::gpu::{Const, Profile, Variant};
use bytemuck::{Pod, Zeroable};

/// Which table is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Table {
    /// A vector for each token, stored.
    Tokens,
    /// A vector for each position, added to what is there.
    Positions,
}

/// Uniform parameters of one shard.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct EmbedParams {
    /// Blocks of 32 columns.
    pub blocks: u32,
    /// First token or position of the shard.
    pub first_entry: u32,
    /// Tokens or positions in the shard.
    pub entry_count: u32,
    /// Factor on the vectors.
    pub scale: f32,
}

/// The variant for a weight format.
pub fn variant(dtype: DType, table: Table, profile: &Profile) -> Variant {
    Variant {
        kernel: "embed",
        slots: weights::slots(dtype, profile),
        consts: vec![("POSITIONS", Const::Bool(table == Table::Positions))],
        workgroup: [profile.row_lanes(32), 1, 1],
    }
}

/// One workgroup a row.
pub fn grid(rows: usize) -> [u32; 3] {
    [rows as u32, 1, 1]
}

/// Every format, and positions in one of them.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    let tokens = DType::ALL.into_iter().map(|dtype| variant(dtype, Table::Tokens, profile));
    tokens.chain([variant(DType::F32, Table::Positions, profile)]).collect()
}
