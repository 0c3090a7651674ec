//! From logits to tokens in two dispatches, for any mixture of rows. Twin: `reference/sample.rs`.

use crate::gpu::{Const, Profile, Variant};
use bytemuck::{Pod, Zeroable};

/// Tokens in one workgroup of the scan: enough workgroups that a single row keeps an adapter busy.
pub const VOCAB_BLOCK: usize = 1024;

/// Uniform parameters of both passes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct SampleParams {
    /// Tokens.
    pub vocab_size: u32,
    /// Elements from one row of logits to the next.
    pub logits_stride: u32,
    /// Blocks of the vocabulary.
    pub block_count: u32,
    /// Sample of row 0.
    pub first_sample: u32,
}

/// What the device reports for a wanted row.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct Sampled {
    /// The token, or a mark of `layout::inputs`.
    pub token: u32,
    /// Largest logit.
    pub largest: f32,
    /// Sum of `exp(logit - largest)`.
    pub sum: f32,
    /// Logit of the token.
    pub logit: f32,
}

impl Sampled {
    /// Natural logarithm of the token's probability, for scored rows.
    pub fn logprob(&self) -> f64 {
        f64::from(self.logit) - f64::from(self.largest) - f64::from(self.sum).ln()
    }
}

/// Below every finite logit; the lowest finite f32.
const MIN_LOGIT: f32 = f32::MIN;

/// First pass.
pub fn scan_variant(profile: &Profile) -> Variant {
    let lanes = profile.row_lanes(64);
    Variant {
        kernel: "sample_scan",
        slots: vec![("reduce", profile.reduce_slot(lanes))],
        consts: vec![("VOCAB_BLOCK", Const::U32(VOCAB_BLOCK as u32)), ("MIN_LOGIT", Const::f32(MIN_LOGIT))],
        workgroup: [lanes, 1, 1],
    }
}

/// Second pass over `vocab_size` tokens.
pub fn pick_variant(vocab_size: usize, profile: &Profile) -> Variant {
    // Many lanes on every adapter: each rule of survival reads the vocabulary some thirty times, and lavapipe ends all
    // loops of an invocation after 65,535 rounds together, without a word.
    let passes = 70;
    let lanes = if vocab_size * passes / 256 > 60_000 { 1024 } else { 256 };
    let lanes = lanes.min(profile.max_invocations);
    Variant {
        kernel: "sample_pick",
        slots: vec![("reduce", profile.reduce_slot(lanes))],
        consts: vec![("MIN_LOGIT", Const::f32(MIN_LOGIT))],
        workgroup: [lanes, 1, 1],
    }
}

/// One workgroup a block of the vocabulary and row.
pub fn scan_grid(vocab_size: usize, rows: usize) -> [u32; 3] {
    [vocab_size.div_ceil(VOCAB_BLOCK) as u32, rows as u32, 1]
}

/// One workgroup a row.
pub fn pick_grid(rows: usize) -> [u32; 3] {
    [rows as u32, 1, 1]
}

/// The only variant of the scan.
pub fn scan_variants_for_tests(profile: &Profile) -> Vec<Variant> {
    vec![scan_variant(profile)]
}

/// Two sizes of vocabularies.
pub fn pick_variants_for_tests(profile: &Profile) -> Vec<Variant> {
    [49_152, 262_144].map(|vocab_size| pick_variant(vocab_size, profile)).to_vec()
}
