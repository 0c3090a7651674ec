//! A mixture of experts: which experts compute a token, which tokens an expert multiplies together, and the sum of what they gave.
//! The products between are `matmul` over experts. Twin: `reference/experts.rs`.
//!
//! A *pair* is a token row with one of its chosen experts: pair `row * chosen + i` is the i-th in the order of the experts. A
//! *tile* holds pairs of one expert, as many as the product's register tile; tiles change what is read together, never a sum.

use super::matmul;
use crate::gpu::{Const, Profile, Variant};
use bytemuck::{Pod, Zeroable};

/// Fixed when the model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// All experts; at most [`MOST_EXPERTS`].
    pub count: usize,
    /// Experts that compute a token.
    pub chosen: usize,
    /// Whether the weights of the chosen are scaled to a sum of 1.
    pub normalize: bool,
}

/// Experts that one workgroup can rank: its scores fit the baseline's workgroup memory, and the rounds of its loops stay within
/// what lavapipe counts.
pub const MOST_EXPERTS: usize = 512;

/// Uniform parameters of `combine_experts`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct CombineExpertsParams {
    /// Width of a row in vectors of four.
    pub width: u32,
    /// Room.
    pub reserved: [u32; 3],
}

/// What becomes of the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sum {
    /// Added to the output: the residual stream.
    Added,
    /// Stored, for a norm that follows.
    Stored,
}

impl Spec {
    /// Pairs in a tile for a bucket of `rows` token rows: what an expert gets if all are equally popular.
    pub fn tile(&self, rows: usize) -> u32 {
        let share = (rows * self.chosen / self.count).max(1);
        let fits = matmul::TILES.into_iter().rev().find(|&tile| tile as usize <= share);
        fits.unwrap_or(matmul::TILES[0])
    }

    /// Most tiles of `rows` token rows: every expert may leave one unfilled.
    pub fn tiles(&self, rows: usize, tile: u32) -> usize {
        let pairs = rows * self.chosen;
        match tile {
            1 => pairs,
            _ => (pairs / tile as usize + self.count).min(pairs),
        }
    }

    /// Words of the routes of up to `rows` token rows.
    pub fn route_words(&self, rows: usize) -> usize {
        let words = |&tile: &u32| 1 + self.tiles(rows, tile) * (tile as usize + 1);
        matmul::TILES.iter().map(words).max().unwrap_or(1)
    }
}

/// Scores to chosen experts; with tiles of one pair to routes too.
pub fn route_variant(spec: &Spec, tile: u32, profile: &Profile) -> Variant {
    Variant {
        kernel: "route_experts",
        slots: vec![],
        consts: vec![
            ("EXPERTS", Const::U32(spec.count as u32)),
            ("CHOSEN", Const::U32(spec.chosen as u32)),
            ("NORMALIZE", Const::Bool(spec.normalize)),
            ("DIRECT", Const::Bool(tile == 1)),
        ],
        workgroup: [profile.row_lanes(64), 1, 1],
    }
}

/// One workgroup a row.
pub fn route_grid(rows: usize) -> [u32; 3] {
    [rows as u32, 1, 1]
}

/// Chosen experts to routes of larger tiles.
pub fn group_variant(spec: &Spec, tile: u32, profile: &Profile) -> Variant {
    Variant {
        kernel: "group_experts",
        slots: vec![],
        consts: vec![
            ("EXPERTS", Const::U32(spec.count as u32)),
            ("CHOSEN", Const::U32(spec.chosen as u32)),
            ("TILE", Const::U32(tile)),
        ],
        workgroup: [profile.row_lanes(64), 1, 1],
    }
}

/// One workgroup an expert.
pub fn group_grid(spec: &Spec) -> [u32; 3] {
    [spec.count as u32, 1, 1]
}

/// Outputs of pairs to outputs of rows.
pub fn combine_variant(spec: &Spec, sum: Sum, profile: &Profile) -> Variant {
    Variant {
        kernel: "combine_experts",
        slots: vec![],
        consts: vec![("CHOSEN", Const::U32(spec.chosen as u32)), ("ADD", Const::Bool(sum == Sum::Added))],
        workgroup: [profile.row_lanes(64), 1, 1],
    }
}

/// One lane a vector of four.
pub fn combine_grid(width: usize, rows: usize, profile: &Profile) -> [u32; 3] {
    [width.div_ceil(4 * profile.row_lanes(64) as usize) as u32, rows as u32, 1]
}

const SPECS: [Spec; 3] = [
    Spec { count: 8, chosen: 2, normalize: true },
    Spec { count: 128, chosen: 8, normalize: true },
    Spec { count: MOST_EXPERTS, chosen: 10, normalize: false },
];

/// With and without grouping.
pub fn route_variants_for_tests(profile: &Profile) -> Vec<Variant> {
    SPECS.iter().flat_map(|spec| [1, 4].map(|tile| route_variant(spec, tile, profile))).collect()
}

/// Every tile that is grouped.
pub fn group_variants_for_tests(profile: &Profile) -> Vec<Variant> {
    SPECS.iter().flat_map(|spec| [2, 4, 8].map(|tile| group_variant(spec, tile, profile))).collect()
}

/// Added and stored.
pub fn combine_variants_for_tests(profile: &Profile) -> Vec<Variant> {
    SPECS.iter().flat_map(|spec| [Sum::Added, Sum::Stored].map(|sum| combine_variant(spec, sum, profile))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_follow_the_share_of_an_expert() {
        let spec = Spec { count: 128, chosen: 8, normalize: true };
        assert_eq!([1, 16, 32, 64, 128, 512].map(|rows| spec.tile(rows)), [1, 1, 2, 4, 8, 8]);
        let small = Spec { count: 4, chosen: 4, normalize: true };
        assert_eq!([1, 2, 3, 8].map(|rows| small.tile(rows)), [1, 2, 2, 8]);
    }

    #[test]
    fn there_is_room_for_the_worst_spread_of_pairs() {
        for (count, chosen) in [(8, 2), (128, 8), (4, 4), (3, 1)] {
            let spec = Spec { count, chosen, normalize: false };
            for rows in [1usize, 2, 7, 64] {
                for tile in [2usize, 4, 8] {
                    // One pair too many in as many experts as possible, the rest of the pairs in one.
                    let pairs = rows * chosen;
                    let lone = (count - 1).min(pairs);
                    let worst = lone + (pairs - lone).div_ceil(tile);
                    assert!(worst <= spec.tiles(rows, tile as u32), "{spec:?}, {rows} rows, tiles of {tile}");
                }
            }
        }
    }
}
