//! Twin of `score`: log-probability of a known token.

use crate::base::TokenId;

/// `logits[token] - ln(sum(exp(logits)))`, with the largest logit taken out of the sum.
///
/// Logits that are not finite give NaN rather than a plausible number.
pub fn logprob(logits: &[f32], token: TokenId) -> f64 {
    if logits.iter().any(|logit| !logit.is_finite()) {
        return f64::NAN;
    }
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for &logit in logits {
        sum += (f64::from(logit) - f64::from(largest)).exp();
    }
    f64::from(logits[token as usize]) - f64::from(largest) - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one() {
        let logits = [1.5, -2.0, 1000.0, 999.25, 0.0];
        let sum: f64 = (0..5).map(|token| logprob(&logits, token).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-14, "{sum}");
        assert!((logprob(&logits, 3) - logprob(&logits, 2) + 0.75).abs() < 1e-14);
    }

    #[test]
    fn equal_logits_share_evenly() {
        assert!((logprob(&[7.0; 8], 3) + 8f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn bad_logits_are_not_scored() {
        assert!(logprob(&[0.0, f32::NAN], 0).is_nan());
        assert!(logprob(&[0.0, f32::INFINITY], 0).is_nan());
    }
}
