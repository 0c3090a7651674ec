//! Frequencies and tables of rotary position embeddings.
//!
//! Frequency i is `theta^(-2i / rotary_dim)` (Su et al., "RoFormer", 2021), changed by the scaling in use. Everything
//! is computed in f64, because an f32 angle at position 100,000 is already wrong in the third decimal.

use super::spec::{RopeScaling, RopeSpec};
use std::f64::consts::TAU;

/// The `rotary_dim / 2` frequencies in radians per position, fastest first.
pub fn inverse_frequencies(spec: &RopeSpec) -> Vec<f64> {
    let frequency = |index: usize| spec.theta.powf(-2.0 * index as f64 / spec.rotary_dim as f64);
    (0..spec.rotary_dim / 2).map(|index| scaled(&spec.scaling, index, frequency(index))).collect()
}

/// `[cos, sin]` of every angle, shape `[positions][rotary_dim / 2]`.
pub fn cos_sin_table(spec: &RopeSpec, positions: usize) -> Vec<[f32; 2]> {
    let frequencies = inverse_frequencies(spec);
    let row = |position: usize| {
        frequencies.iter().map(move |frequency| {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            [cos as f32, sin as f32]
        })
    };
    (0..positions).flat_map(row).collect()
}

fn scaled(scaling: &RopeScaling, index: usize, frequency: f64) -> f64 {
    match *scaling {
        RopeScaling::Default => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            // How often this frequency turns within the original context decides; "The Llama 3 Herd of Models" code.
            let turns = original_context as f64 * frequency / TAU;
            let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
            frequency * (kept + (1.0 - kept) / factor)
        }
        RopeScaling::Factors { ref factors } => frequency / f64::from(factors[index]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_scaling_keeps_fast_and_divides_slow_frequencies() {
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 64 };
        // 4 turns in 64 positions and 1 turn: the ends of the ramp.
        assert_eq!(scaled(&scaling, 0, 2.0 * TAU / 64.0 * 2.0), TAU / 16.0);
        assert_eq!(scaled(&scaling, 0, TAU / 64.0), TAU / 64.0 / 8.0);
        assert_eq!(scaled(&scaling, 0, 1.0), 1.0);
        // 2.5 turns: half of it kept, half divided.
        let middle = 2.5 * TAU / 64.0;
        assert!((scaled(&scaling, 0, middle) / middle - (0.5 + 0.5 / 8.0)).abs() < 1e-12);
    }

    #[test]
    fn the_table_has_one_row_per_position() {
        let spec = RopeSpec { theta: 100.0, rotary_dim: 4, scaling: RopeScaling::Default };
        let table = cos_sin_table(&spec, 3);
        assert_eq!(table.len(), 6);
        assert_eq!(table[..2], [[1.0, 0.0]; 2]);
        assert_eq!(table[4], [2f64.cos() as f32, 2f64.sin() as f32]);
        assert_eq!(table[5], [0.2f64.cos() as f32, 0.2f64.sin() as f32]);
    }
}
