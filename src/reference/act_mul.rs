//! Twin of `act_mul`: the gated activation between an MLP's projections.

/// `silu(gate) * up`, element by element, with `silu(g) = g / (1 + exp(-g))`.
pub fn silu_mul(gate: &[f64], up: &[f64]) -> Vec<f64> {
    assert_eq!(gate.len(), up.len(), "gate and up have the same width");
    gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect()
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
}
