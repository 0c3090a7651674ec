//! Twin of `act_mul` and of the activations in epilogues: what happens between an MLP's projections.

use crate::model::spec::Activation;

/// The function of one number. Written so that no argument overflows.
pub fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

/// `activation(gate) * up`, element by element.
pub fn gated(activation: Activation, gate: &[f64], up: &[f64]) -> Vec<f64> {
    assert_eq!(gate.len(), up.len(), "gate and up have the same width");
    gate.iter().zip(up).map(|(&gate, up)| activate(activation, gate) * up).collect()
}

/// `silu(gate) * up`, element by element, with `silu(g) = g / (1 + exp(-g))`.
pub fn silu_mul(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gated(Activation::Silu, gate, up)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silu_is_odd_about_half_its_argument_and_never_overflows() {
        let y = silu_mul(&[0.0, 2.0, -2.0, 800.0, -800.0], &[5.0, 1.0, 1.0, 2.0, 2.0]);
        assert_eq!(y[0], 0.0);
        // g * sigmoid(g) + (-g) * sigmoid(-g) * (-1) = g.
        assert!((y[1] - y[2] - 2.0).abs() < 1e-15);
        assert_eq!(y[3], 1600.0);
        assert_eq!(y[4], 0.0);
    }

    #[test]
    fn gelu_is_its_argument_times_a_sigmoid_and_never_overflows() {
        let gelu = |x| activate(Activation::GeluTanh, x);
        // (1 + tanh u) / 2 = 1 / (1 + exp(-2u)).
        for x in [-3.0f64, -0.5, 0.1, 2.0] {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            assert!((gelu(x) - x / (1.0 + (-2.0 * u).exp())).abs() < 1e-15, "{x}");
        }
        assert_eq!([gelu(0.0), gelu(1e6), gelu(-1e6)], [0.0, 1e6, 0.0]);
    }
}
