//! How far a kernel's f32 result may be from its f64 twin.
//!
//! The bound knows the condition of each element: a sum of large terms that cancel may be off by the rounding of the
//! large terms, a sum of small terms may not. For n rounded operations in any order of summation the error is at most
//! `n * u * sum|terms|` with `u = 2^-24` (Higham, "Accuracy and Stability of Numerical Algorithms", section 4.2), and
//! since roundings go both ways it grows like `sqrt(n)` in practice (Higham and Mary 2019). We allow the smaller of
//! the sure bound and [`SPREAD`] times the square root, so that an error of a few units in a long sum is still seen.

/// Half the spacing of f32 numbers just above 1: the largest relative error of one rounding.
pub const UNIT_ROUNDOFF: f64 = 1.0 / 16_777_216.0;

/// Standard deviations allowed. With 8 a single element exceeds the bound by chance once in about 10^15, if its
/// roundings are independent.
pub const SPREAD: f64 = 8.0;

/// Absolute error always allowed: results so small that the device may flush them to zero.
pub const FLUSHED: f64 = f32::MIN_POSITIVE as f64;

/// How well a result agreed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Closeness {
    /// Largest absolute difference.
    pub max_abs: f64,
    /// Largest share of an element's bound that was used up; at most 1.
    pub worst_share: f64,
    /// Normalised mean squared error, see [`nmse`].
    pub nmse: f64,
}

/// The largest difference allowed for an element with `sum_abs` as the sum of its terms' magnitudes and `ops` rounded
/// operations between its inputs and itself (for a dot product: its length; add what an inexact `exp` or `sqrt`
/// costs in units in the last place).
pub fn bound(sum_abs: f64, ops: usize) -> f64 {
    let ops = ops.max(1) as f64;
    ops.min(SPREAD * ops.sqrt()) * UNIT_ROUNDOFF * sum_abs + FLUSHED * ops
}

/// Compares a kernel's result with its twin's; `sum_abs` as in [`bound`], one for each element.
///
/// # Errors
/// Says which element is not finite or furthest outside its bound, with both values, the bound and how many elements
/// are outside.
pub fn check_close(gpu: &[f32], twin: &[f64], sum_abs: &[f64], ops: usize) -> Result<Closeness, String> {
    if gpu.len() != twin.len() || sum_abs.len() != twin.len() {
        let (gpu, twin, sum_abs) = (gpu.len(), twin.len(), sum_abs.len());
        return Err(format!("lengths differ: {gpu} results, {twin} of the twin, {sum_abs} magnitudes"));
    }
    if let Some(index) = first_not_finite(gpu) {
        return Err(format!("element {index} of {} is {}, the twin has {}", gpu.len(), gpu[index], twin[index]));
    }
    let mut closeness = Closeness { max_abs: 0.0, worst_share: 0.0, nmse: nmse(gpu, twin) };
    let (mut worst, mut outside) = (0, 0);
    for (index, ((&gpu, &twin), &sum_abs)) in gpu.iter().zip(twin).zip(sum_abs).enumerate() {
        let difference = (f64::from(gpu) - twin).abs();
        let share = difference / bound(sum_abs, ops);
        if share.is_nan() {
            return Err(format!("element {index}: the twin has {twin} with magnitude {sum_abs}, which bounds nothing"));
        }
        closeness.max_abs = closeness.max_abs.max(difference);
        outside += usize::from(share > 1.0);
        if share > closeness.worst_share {
            (closeness.worst_share, worst) = (share, index);
        }
    }
    if outside == 0 {
        return Ok(closeness);
    }
    Err(format!(
        "{outside} of {} elements are outside their bounds; the worst is element {worst}: {} where the twin has {}, \
         {:e} apart with a bound of {:e} (magnitude {:e}, {ops} operations)",
        gpu.len(),
        gpu[worst],
        twin[worst],
        (f64::from(gpu[worst]) - twin[worst]).abs(),
        bound(sum_abs[worst], ops),
        sum_abs[worst],
    ))
}

/// [`check_close`] for tests: panics with `label` before the message.
#[track_caller]
pub fn assert_close(gpu: &[f32], twin: &[f64], sum_abs: &[f64], ops: usize, label: &str) -> Closeness {
    match check_close(gpu, twin, sum_abs, ops) {
        Ok(closeness) => closeness,
        Err(message) => panic!("{label}: {message}"),
    }
}

/// Index of the first NaN or infinity.
pub fn first_not_finite(values: &[f32]) -> Option<usize> {
    values.iter().position(|value| !value.is_finite())
}

/// Normalised mean squared error: `sum((gpu - twin)^2) / sum(twin^2)`. Zero if both are all zeros.
pub fn nmse(gpu: &[f32], twin: &[f64]) -> f64 {
    let error: f64 = gpu.iter().zip(twin).map(|(&gpu, twin)| (f64::from(gpu) - twin).powi(2)).sum();
    let power: f64 = twin.iter().map(|twin| twin * twin).sum();
    if error == 0.0 { 0.0 } else { error / power }
}

/// Largest absolute difference; infinite if a difference is NaN.
pub fn max_abs(gpu: &[f32], twin: &[f64]) -> f64 {
    assert_eq!(gpu.len(), twin.len(), "only results of one length can be compared");
    let difference = |(&gpu, twin): (&f32, &f64)| (f64::from(gpu) - twin).abs();
    gpu.iter().zip(twin).map(difference).fold(0.0, |a, b| if b.is_nan() { f64::INFINITY } else { a.max(b) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_honest_f32_sum_passes_and_a_wrong_term_does_not() {
        let terms: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 1000) as f32 * 0.37 - 180.0).collect();
        let sum: f32 = terms.iter().sum();
        let exact: f64 = terms.iter().map(|&t| f64::from(t)).sum();
        let sum_abs: f64 = terms.iter().map(|&t| f64::from(t).abs()).sum();
        assert_close(&[sum], &[exact], &[sum_abs], terms.len(), "sum");
        // One term of a thousand left out, or off by 2 per cent.
        assert!(check_close(&[sum - terms[1]], &[exact], &[sum_abs], terms.len()).is_err());
        assert!(check_close(&[sum + 0.02 * terms[1]], &[exact], &[sum_abs], terms.len()).is_err());
    }

    #[test]
    fn the_message_names_the_worst_element() {
        let message = check_close(&[1.0, 2.5, 3.001], &[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], 4).unwrap_err();
        assert!(message.starts_with("2 of 3 elements are outside"), "{message}");
        assert!(message.contains("element 1: 2.5 where the twin has 2,"), "{message}");
    }

    #[test]
    fn values_that_are_not_finite_never_pass() {
        for bad in [f32::NAN, f32::INFINITY] {
            let message = check_close(&[0.0, bad], &[0.0, 1.0], &[1.0, 1e300], 1).unwrap_err();
            assert!(message.starts_with("element 1 of 2 is"), "{message}");
        }
        assert!(check_close(&[0.0], &[f64::NAN], &[1.0], 1).is_err());
        assert!(check_close(&[0.0], &[f64::INFINITY], &[f64::INFINITY], 1).is_err());
        assert_eq!(max_abs(&[f32::NAN], &[0.0]), f64::INFINITY);
    }

    #[test]
    fn lengths_must_agree() {
        assert!(check_close(&[0.0], &[0.0, 0.0], &[0.0, 0.0], 1).is_err());
        assert!(check_close(&[], &[], &[], 1).is_ok());
    }

    #[test]
    fn zeros_are_compared_absolutely() {
        assert!(check_close(&[1e-38], &[0.0], &[0.0], 1).is_ok());
        assert!(check_close(&[1e-30], &[0.0], &[0.0], 1).is_err());
        assert_eq!(nmse(&[0.0], &[0.0]), 0.0);
        assert_eq!(nmse(&[1.0], &[0.0]), f64::INFINITY);
    }
}
