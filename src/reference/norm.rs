//! Twin of `norm`: root-mean-square normalisation (Zhang and Sennrich 2019) and layer normalisation (Ba et al. 2016).

/// `x * weight / sqrt(mean(x^2) + eps)`, over one row. `x` and `weight` have the same length.
pub fn rms_norm(x: &[f64], weight: &[f32], eps: f32) -> Vec<f64> {
    assert_eq!(x.len(), weight.len(), "a norm's weight is as long as its row");
    let mut sum = 0.0;
    for value in x {
        sum += value * value;
    }
    let scale = 1.0 / (sum / x.len() as f64 + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(value, &weight)| value * scale * f64::from(weight)).collect()
}

/// `(x - mean(x)) * weight / sqrt(variance(x) + eps) + bias`, over one row; all three have the same length.
pub fn layer_norm(x: &[f64], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f64> {
    assert_eq!((x.len(), x.len()), (weight.len(), bias.len()), "a norm's weight and bias are as long as its row");
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (variance + f64::from(eps)).sqrt();
    let one =
        |((value, &weight), &bias): ((&f64, &f32), &f32)| (value - mean) * scale * f64::from(weight) + f64::from(bias);
    x.iter().zip(weight).zip(bias).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_by_the_root_of_the_mean_square() {
        // mean(3^2, 5^2) + 8 = 25, and 1/5 of 3 and of 5 times the weights.
        let y = rms_norm(&[3.0, 5.0], &[1.0, 2.0], 8.0);
        assert!((y[0] - 0.6).abs() < 1e-15 && (y[1] - 2.0).abs() < 1e-15, "{y:?}");
    }

    #[test]
    fn eps_keeps_zeros_finite() {
        assert_eq!(rms_norm(&[0.0; 4], &[1.0; 4], 1e-6), [0.0; 4]);
    }

    #[test]
    fn layer_norm_takes_the_mean_away_first() {
        // Mean 4, variance 1, and 1 + 8 = 9.
        let y = layer_norm(&[3.0, 5.0], &[3.0, 6.0], &[0.5, 0.0], 8.0);
        assert!((y[0] + 0.5).abs() < 1e-15 && (y[1] - 2.0).abs() < 1e-15, "{y:?}");
        assert_eq!(layer_norm(&[7.0; 3], &[1.0; 3], &[0.25; 3], 1e-6), [0.25; 3]);
    }
}
