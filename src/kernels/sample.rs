//! From logits to tokens in two dispatches for any mixture of rows, and a third where log-probabilities are wanted. Twins:
//! `reference/process.rs`, `reference/sample.rs` and `reference/score.rs`.

use crate::gpu::profile::DeviceKind;
use crate::gpu::{Const, Profile, Variant};
use bytemuck::{Pod, Zeroable};

/// Tokens in one workgroup of the scan: enough workgroups that a single row keeps an adapter busy.
pub const VOCAB_BLOCK: usize = 1024;

/// Bytes that the scan leaves for each block of the vocabulary and row: `Partial` in the shaders.
pub const PARTIAL_BYTES: usize = 4 * (8 + VOCAB_BLOCK / 16);

/// The likeliest tokens that are sorted out of all for certain; filters that keep no more take the short way.
const SORTED_RANKS: u32 = 64;
/// The same for a larger top-k, as long as the largest of each lane tell: 128 lanes have to, and so many of them let about twice
/// as many tokens through.
const MOST_RANKS: u32 = 100;
/// Tokens that there is room for while they are sorted: ties, and what the bound of the ranks lets through besides.
const CANDIDATES: u32 = 384;

/// Uniform parameters of all passes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct SampleParams {
    /// Tokens.
    pub vocab_size: u32,
    /// Elements from one row of logits to the next.
    pub logits_stride: u32,
    /// Where rows of logits after the rules of requests begin, behind those of the model.
    pub processed_at: u32,
    /// Elements from one of them to the next.
    pub processed_stride: u32,
    /// Blocks of the vocabulary.
    pub block_count: u32,
    /// Sample of row 0.
    pub first_sample: u32,
    /// From what the scan reports of one row to the next: `block_count`, or 0 where rows share it.
    pub partials_stride: u32,
    /// Keeps the size a multiple of 16 bytes.
    pub reserved: u32,
}

/// What the device reports for a wanted row.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct Sampled {
    /// The token, or a mark of `layout::inputs`.
    pub token: u32,
    /// Largest of the model's logits; this and `sum` only where the row is scored or reports log-probabilities.
    pub largest: f32,
    /// Sum of `exp(logit - largest)`.
    pub sum: f32,
    /// The model's logit of the token.
    pub logit: f32,
    /// 1 plus the number of likelier tokens; 0 if nobody asked.
    pub rank: u32,
    /// Of the tokens that may come, those could be drawn whose logit has at least this [key](sort_key).
    pub key: u32,
    /// Which way it was drawn, see [`Path`].
    pub path: u32,
    /// Keeps the size a multiple of 16 bytes.
    pub reserved: u32,
}

/// How the device came to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// It was given, or there was none.
    Given,
    /// The largest logit.
    Largest,
    /// Drawn from all tokens that may come.
    Unfiltered,
    /// Filters that a few sorted tokens decided.
    Sorted,
    /// Filters whose bound was searched among all tokens.
    Searched,
}

impl Sampled {
    /// Natural logarithm of the probability of a token with this logit, where the statistics are there.
    pub fn logprob_of(&self, logit: f32) -> f64 {
        f64::from(logit) - f64::from(self.largest) - f64::from(self.sum).ln()
    }

    /// That of the token itself.
    pub fn logprob(&self) -> f64 {
        self.logprob_of(self.logit)
    }

    /// How the token came about.
    pub fn path(&self) -> Option<Path> {
        [Path::Given, Path::Largest, Path::Unfiltered, Path::Sorted, Path::Searched].get(self.path as usize).copied()
    }
}

/// Order of floats as order of integers; zeros of both signs are equal. `sortable` in the shaders.
pub fn sort_key(value: f32) -> u32 {
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 }
}

/// First pass.
pub fn scan_variant(profile: &Profile) -> Variant {
    let lanes = profile.row_lanes(64);
    Variant {
        kernel: "sample_scan",
        slots: vec![("reduce", profile.reduce_slot(lanes))],
        consts: vec![],
        workgroup: [lanes, 1, 1],
    }
}

/// Lanes of the passes that have one workgroup a row.
fn row_pass_lanes(vocab_size: usize, profile: &Profile) -> u32 {
    // Enough that the largest of each are a sample of the likeliest tokens; on software adapters every eight lanes more cost
    // a visit at each barrier.
    let mut lanes = if profile.kind == DeviceKind::Cpu { 128 } else { 256 };
    // With all searches a row reads the vocabulary up to 28 times (ranks of log-probabilities among 2^20 tokens), and lavapipe ends
    // all loops of an invocation after 65,535 rounds together, without a word.
    while vocab_size * 28 / lanes as usize > 60_000 && lanes < profile.max_invocations.min(512) {
        lanes *= 2;
    }
    lanes
}

/// Second pass over `vocab_size` tokens.
pub fn pick_variant(vocab_size: usize, profile: &Profile) -> Variant {
    let lanes = row_pass_lanes(vocab_size, profile);
    Variant {
        kernel: "sample_pick",
        slots: vec![("reduce", profile.reduce_slot(lanes))],
        consts: vec![
            ("CANDIDATES", Const::U32(CANDIDATES)),
            ("SORTED_RANKS", Const::U32(SORTED_RANKS)),
            ("MOST_RANKS", Const::U32(MOST_RANKS)),
        ],
        workgroup: [lanes, 1, 1],
    }
}

/// Third pass, where log-probabilities are wanted.
pub fn logprobs_variant(vocab_size: usize, profile: &Profile) -> Variant {
    let lanes = row_pass_lanes(vocab_size, profile);
    Variant {
        kernel: "sample_logprobs",
        slots: vec![("reduce", profile.reduce_slot(lanes))],
        consts: vec![("CANDIDATES", Const::U32(CANDIDATES))],
        workgroup: [lanes, 1, 1],
    }
}

/// One workgroup a block of the vocabulary and row.
pub fn scan_grid(vocab_size: usize, rows: usize) -> [u32; 3] {
    [vocab_size.div_ceil(VOCAB_BLOCK) as u32, rows as u32, 1]
}

/// One workgroup a row, in the second and third pass.
pub fn row_grid(rows: usize) -> [u32; 3] {
    [rows as u32, 1, 1]
}

/// The only variant of the scan.
pub fn scan_variants_for_tests(profile: &Profile) -> Vec<Variant> {
    vec![scan_variant(profile)]
}

/// Two sizes of vocabularies.
pub fn pick_variants_for_tests(profile: &Profile) -> Vec<Variant> {
    [49_152, 1 << 20].map(|vocab_size| pick_variant(vocab_size, profile)).to_vec()
}

/// Two sizes of vocabularies.
pub fn logprobs_variants_for_tests(profile: &Profile) -> Vec<Variant> {
    [49_152, 1 << 20].map(|vocab_size| logprobs_variant(vocab_size, profile)).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_their_floats() {
        let ordered = [f32::MIN, -2.0, -1e-40, 0.0, 1e-40, 1.0, 1.5, f32::MAX];
        assert!(ordered.windows(2).all(|pair| sort_key(pair[0]) < sort_key(pair[1])));
        assert_eq!(sort_key(-0.0), sort_key(0.0));
        // DROPPED_KEY in the shaders.
        assert_eq!(sort_key(f32::MIN), 0x0080_0000);
    }
}
