//! Frequencies and tables of rotary position embeddings.
//!
//! Frequency i is `theta^(-2i / rotary_dim)` (Su et al., "RoFormer", 2021), changed by the scaling in use; formulas as in
//! transformers' `modeling_rope_utils.py`. Everything is computed in f64, because an f32 angle at position 100,000 is
//! already wrong in the third decimal.
//!
//! Two scalings (dynamic and longrope) look at the length of the context. Here that is the longest sequence that the
//! engine admits, once and for all, as in vLLM: frequencies that change while a sequence grows would make stored keys
//! wrong and let a token depend on what comes after it.

use super::spec::{RopeScaling, RopeSpec};
use std::f64::consts::{PI, TAU};

/// The `rotary_dim / 2` frequencies in radians per position, fastest first, for an engine whose longest sequence has
/// `context` tokens.
pub fn inverse_frequencies(spec: &RopeSpec, context: usize) -> Vec<f64> {
    let width = spec.rotary_dim as f64;
    let theta = match spec.scaling {
        RopeScaling::Dynamic { factor, original_context } => {
            let stretch = context.max(original_context) as f64 / original_context as f64;
            // With two elements there is one frequency, 1, whatever the base.
            let power = if spec.rotary_dim > 2 { width / (width - 2.0) } else { 0.0 };
            spec.theta * (factor * stretch - (factor - 1.0)).powf(power)
        }
        _ => spec.theta,
    };
    let frequency = |index: usize| theta.powf(-2.0 * index as f64 / width);
    (0..spec.rotary_dim / 2).map(|index| scaled(spec, context, index, frequency(index))).collect()
}

/// What cosines and sines are multiplied with, so that queries and keys grow by it; 1 in most families.
pub fn attention_factor(scaling: &RopeScaling) -> f64 {
    match *scaling {
        RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. } => attention_factor,
        _ => 1.0,
    }
}

/// `[cos, sin]` of every angle, attention factor included, shape `[positions][rotary_dim / 2]`, for an engine whose
/// longest sequence has `positions` tokens.
pub fn cos_sin_table(spec: &RopeSpec, positions: usize) -> Vec<[f32; 2]> {
    let (frequencies, factor) = (inverse_frequencies(spec, positions), attention_factor(&spec.scaling));
    (0..positions).flat_map(|position| cos_sin_row(&frequencies, factor, position)).collect()
}

/// One row of the table: `[cos, sin]` of `position` times each frequency, times `attention_factor`.
pub fn cos_sin_row(
    frequencies: &[f64],
    attention_factor: f64,
    position: usize,
) -> impl Iterator<Item = [f32; 2]> + use<'_> {
    frequencies.iter().map(move |frequency| {
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        [(cos * attention_factor) as f32, (sin * attention_factor) as f32]
    })
}

/// The longest context that a model with this rotary embedding was made for, where its files say `configured`: scalings
/// that are added to a finished model leave the old number there.
pub fn longest_context(spec: &RopeSpec, configured: usize) -> usize {
    match spec.scaling {
        RopeScaling::Dynamic { factor, original_context } | RopeScaling::Yarn { factor, original_context, .. } => {
            // A float too large becomes the largest integer, which the caller's bounds refuse.
            configured.max((original_context as f64 * factor) as usize)
        }
        _ => configured,
    }
}

fn scaled(spec: &RopeSpec, context: usize, index: usize, frequency: f64) -> f64 {
    match &spec.scaling {
        RopeScaling::Default | RopeScaling::Dynamic { .. } => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            // How often this frequency turns within the original context decides; "The Llama 3 Herd of Models" code.
            let turns = original_context as f64 * frequency / TAU;
            let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
            frequency * (kept + (1.0 - kept) / factor)
        }
        &RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, truncate, .. } => {
            let width = spec.rotary_dim as f64;
            // The (broken) index of the frequency that makes so many turns within the original context.
            let place =
                |turns: f64| width * (original_context as f64 / (turns * 2.0 * PI)).ln() / (2.0 * spec.theta.ln());
            let (mut low, mut high) = (place(beta_fast), place(beta_slow));
            if truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            (low, high) = (low.max(0.0), high.min(width - 1.0));
            // A ramp needs a width.
            let ramp = if low == high { 0.001 } else { high - low };
            let stretched = ((index as f64 - low) / ramp).clamp(0.0, 1.0);
            frequency * (1.0 - stretched + stretched / factor)
        }
        RopeScaling::LongRope { short, long, original_context, .. } => {
            let factors = if context > *original_context { long } else { short };
            frequency / f64::from(factors[index])
        }
        RopeScaling::Factors { factors } => frequency / f64::from(factors[index]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> RopeSpec {
        RopeSpec { theta: 100.0, rotary_dim: 4, scaling }
    }

    #[test]
    fn llama3_scaling_keeps_fast_and_divides_slow_frequencies() {
        let spec = rope(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 64,
        });
        let scaled = |frequency| scaled(&spec, 64, 0, frequency);
        // 4 turns in 64 positions and 1 turn: the ends of the ramp.
        assert_eq!(scaled(2.0 * TAU / 64.0 * 2.0), TAU / 16.0);
        assert_eq!(scaled(TAU / 64.0), TAU / 64.0 / 8.0);
        assert_eq!(scaled(1.0), 1.0);
        // 2.5 turns: half of it kept, half divided.
        let middle = 2.5 * TAU / 64.0;
        assert!((scaled(middle) / middle - (0.5 + 0.5 / 8.0)).abs() < 1e-12);
    }

    #[test]
    fn the_table_has_one_row_per_position() {
        let table = cos_sin_table(&rope(RopeScaling::Default), 3);
        assert_eq!(table.len(), 6);
        assert_eq!(table[..2], [[1.0, 0.0]; 2]);
        assert_eq!(table[4], [2f64.cos() as f32, 2f64.sin() as f32]);
        assert_eq!(table[5], [0.2f64.cos() as f32, 0.2f64.sin() as f32]);
    }

    #[test]
    fn the_longest_sequence_of_the_engine_chooses_the_factors() {
        let (short, long) = (vec![1.0, 2.0], vec![4.0, 8.0]);
        let spec = rope(RopeScaling::LongRope { short, long, original_context: 64, attention_factor: 1.5 });
        let plain = inverse_frequencies(&rope(RopeScaling::Default), 64);
        assert_eq!(inverse_frequencies(&spec, 64), [plain[0], plain[1] / 2.0]);
        assert_eq!(inverse_frequencies(&spec, 65), [plain[0] / 4.0, plain[1] / 8.0]);
        // Position 0 has no angle: the factor alone is left.
        assert_eq!(cos_sin_table(&spec, 65)[..2], [[1.5, 0.0]; 2]);

        let dynamic = rope(RopeScaling::Dynamic { factor: 2.0, original_context: 64 });
        assert_eq!(inverse_frequencies(&dynamic, 10), plain);
        // Twice the length and factor 2: base 100 * (4 - 1)^(4 / 2) = 900.
        assert!((inverse_frequencies(&dynamic, 128)[1] - 1.0 / 30.0).abs() < 1e-15);
        assert_eq!((longest_context(&dynamic, 64), longest_context(&spec, 64)), (128, 64));
    }

    #[test]
    fn a_ramp_without_width_is_a_step() {
        let spec = RopeSpec {
            theta: 10_000.0,
            rotary_dim: 64,
            scaling: RopeScaling::Yarn {
                factor: 4.0,
                original_context: 4096,
                beta_fast: 8.0,
                beta_slow: 8.0,
                truncate: false,
                attention_factor: 1.0,
            },
        };
        let plain = inverse_frequencies(&RopeSpec { scaling: RopeScaling::Default, ..spec.clone() }, 4096);
        let turns = |index: usize| 4096.0 * plain[index] / TAU;
        for (index, frequency) in inverse_frequencies(&spec, 4096).into_iter().enumerate() {
            let expected = if turns(index) > 8.0 { plain[index] } else { plain[index] / 4.0 };
            assert!((frequency / expected - 1.0).abs() < 1e-12, "{index}");
        }
    }
}
