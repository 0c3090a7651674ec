//! Twin of `sample_logprobs`: log-probability and rank of a known token, and the likeliest tokens, all by the model's own logits.

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

/// 1 plus the number of tokens with a larger logit.
pub fn rank(logits: &[f32], token: TokenId) -> u32 {
    1 + logits.iter().filter(|&&logit| logit > logits[token as usize]).count() as u32
}

/// The `count` likeliest tokens (all, if there are fewer), likeliest first and lower ids first where equal.
pub fn likeliest(logits: &[f32], count: usize) -> Vec<TokenId> {
    let mut ranked: Vec<TokenId> = (0..logits.len() as TokenId).collect();
    // Stable; zeros of both signs are equal.
    ranked.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap_or(std::cmp::Ordering::Equal));
    ranked.truncate(count);
    ranked
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
    fn ranks_count_the_likelier_and_ties_go_by_id() {
        let logits = [1.0, 3.0, 1.0, -0.0, 0.0];
        assert_eq!([0, 1, 2, 3].map(|token| rank(&logits, token)), [2, 1, 2, 4]);
        assert_eq!(likeliest(&logits, 4), [1, 0, 2, 3]);
        assert_eq!(likeliest(&logits, 9), [1, 0, 2, 3, 4]);
    }

    #[test]
    fn bad_logits_are_not_scored() {
        assert!(logprob(&[0.0, f32::NAN], 0).is_nan());
        assert!(logprob(&[0.0, f32::INFINITY], 0).is_nan());
    }
}
