//! Chi-square test of draws against an exact distribution.

// Each test program uses its own part of this file.
#![allow(dead_code)]

/// Least p-value of an honest sampler's draws that a test accepts.
pub const LEAST_P: f64 = 1e-4;

/// Bins with fewer expected draws are merged with others, since the statistic is only then chi-square distributed.
const LEAST_EXPECTED: f64 = 5.0;

/// The p-value of `counts` (draws of each token id) under `distribution` (token ids and probabilities, sum 1).
///
/// # Errors
/// A token outside the distribution was drawn.
pub fn p_value(counts: &[u64], distribution: &[(u32, f64)]) -> Result<f64, String> {
    let draws: u64 = counts.iter().sum();
    let mut probabilities = vec![0.0; counts.len()];
    for &(token, probability) in distribution {
        probabilities[token as usize] = probability;
    }
    let mut bins: Vec<(f64, f64)> = Vec::new();
    let mut rare = (0.0, 0.0);
    for (token, (&count, probability)) in counts.iter().zip(&probabilities).enumerate() {
        let (observed, expected) = (count as f64, probability * draws as f64);
        if *probability == 0.0 {
            if count > 0 {
                return Err(format!("token {token} was drawn {count} times and has no probability"));
            }
        } else if expected < LEAST_EXPECTED {
            rare = (rare.0 + observed, rare.1 + expected);
            if rare.1 >= LEAST_EXPECTED {
                bins.push(std::mem::take(&mut rare));
            }
        } else {
            bins.push((observed, expected));
        }
    }
    if let Some(last) = bins.last_mut() {
        *last = (last.0 + rare.0, last.1 + rare.1);
    }
    let statistic: f64 = bins.iter().map(|(observed, expected)| (observed - expected).powi(2) / expected).sum();
    Ok(if bins.len() < 2 { 1.0 } else { tail(statistic, bins.len() - 1) })
}

/// Probability that a chi-square variable with `freedom` degrees exceeds `statistic`: Q(freedom / 2, statistic / 2).
pub fn tail(statistic: f64, freedom: usize) -> f64 {
    upper_gamma(freedom as f64 / 2.0, statistic / 2.0)
}

/// Regularised upper incomplete gamma function Q(a, x): one minus its power series below `a + 1`, its continued
/// fraction by Lentz's method above (Abramowitz and Stegun 6.5.29 and 6.5.31).
fn upper_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    let factor = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        let mut term = 1.0 / a;
        let mut sum = term;
        let mut n = a;
        while term > sum * 1e-17 {
            n += 1.0;
            term *= x / n;
            sum += term;
        }
        return 1.0 - factor * sum;
    }
    let mut b = x + 1.0 - a;
    let mut c = f64::INFINITY;
    let mut d = 1.0 / b;
    let mut fraction = d;
    for i in 1..10_000 {
        let i = f64::from(i);
        let numerator = i * (a - i);
        b += 2.0;
        d = 1.0 / (b + numerator * d);
        c = b + numerator / c;
        let step = c * d;
        fraction *= step;
        if (step - 1.0).abs() < 1e-15 {
            break;
        }
    }
    factor * fraction
}

/// Logarithm of the gamma function: Stirling's series from 20 on, brought down by `gamma(a + 1) = a gamma(a)`.
fn ln_gamma(a: f64) -> f64 {
    let (mut z, mut below) = (a, 0.0);
    while z < 20.0 {
        below += z.ln();
        z += 1.0;
    }
    let series = 1.0 / (12.0 * z) - 1.0 / (360.0 * z.powi(3)) + 1.0 / (1260.0 * z.powi(5)) - 1.0 / (1680.0 * z.powi(7));
    (z - 0.5) * z.ln() - z + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - below
}
