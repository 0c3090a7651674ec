//! Twin of the attention kernels: the query heads of one token against all positions up to its own.
//!
//! The kernels cut the context into chunks and merge online softmaxes; the twin takes the maximum, the exponentials
//! and the sum over the whole context, which is the same function.

use crate::model::spec::AttnSpec;

/// `cap * tanh(x / cap)`, or `x` without a cap.
pub fn soft_cap(x: f64, cap: Option<f32>) -> f64 {
    cap.map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh())
}

/// Attention of one token: for each query head `sum of softmax(cap(scale * q.k)) * v` over the last `window` of `context`
/// positions; no other position is asked for.
///
/// `queries` is `[heads][head_dim]`, as is the result. `key(position)` and `value(position)` give the row
/// `[kv_heads][head_dim]` of a position below `context`; `context` counts the token itself.
pub fn attend<'a>(
    queries: &[f64],
    key: &dyn Fn(usize) -> &'a [f64],
    value: &dyn Fn(usize) -> &'a [f64],
    spec: &AttnSpec,
    context: usize,
) -> Vec<f64> {
    attend_with_magnitude(queries, key, value, spec, context).0
}

/// [`attend`], and for each element of the result how much it can be moved by relative errors of size 1 in the
/// products: `sum(p * |v|) * (1 + 2 * s)`, where `s` is the largest `scale * sum|q * k|`. An error d in every score
/// changes each softmax weight by a factor within `exp(+-2d)`, hence the second term.
pub fn attend_with_magnitude<'a>(
    queries: &[f64],
    key: &dyn Fn(usize) -> &'a [f64],
    value: &dyn Fn(usize) -> &'a [f64],
    spec: &AttnSpec,
    context: usize,
) -> (Vec<f64>, Vec<f64>) {
    assert_eq!(queries.len(), spec.query_width(), "queries are all heads of one token");
    assert!(context > 0, "a token sees at least itself");
    let scale = f64::from(spec.scale);
    let first = context - spec.window.unwrap_or(context).min(context);
    let mut output = vec![0.0; queries.len()];
    let mut magnitude = vec![0.0; queries.len()];
    for head in 0..spec.heads {
        let query = &queries[head * spec.head_dim..][..spec.head_dim];
        let kv_start = head / spec.group_size() * spec.head_dim;

        let mut scores = vec![0.0; context - first];
        let mut largest_terms = 0.0f64;
        for (position, score) in (first..).zip(&mut scores) {
            let mut terms = 0.0;
            for (q, k) in query.iter().zip(&key(position)[kv_start..][..spec.head_dim]) {
                *score += q * k * scale;
                terms += (q * k * scale).abs();
            }
            // The cap's slope is 1 at most, so it moves a score no further than its terms do.
            *score = soft_cap(*score, spec.softcap);
            largest_terms = largest_terms.max(terms);
        }

        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut total = 0.0;
        for score in &mut scores {
            *score = (*score - largest).exp();
            total += *score;
        }

        let out = &mut output[head * spec.head_dim..][..spec.head_dim];
        let terms = &mut magnitude[head * spec.head_dim..][..spec.head_dim];
        for (position, score) in (first..).zip(&scores) {
            let share = score / total;
            for (i, v) in value(position)[kv_start..][..spec.head_dim].iter().enumerate() {
                out[i] += share * v;
                terms[i] += share * v.abs() * (1.0 + 2.0 * largest_terms);
            }
        }
    }
    (output, magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> AttnSpec {
        AttnSpec::plain(4, 2, 1)
    }

    #[test]
    fn equal_scores_average_the_values_of_the_own_group() {
        let values = [[1.0, 10.0], [3.0, 30.0], [1e9, 1e9]];
        let out = attend(&[0.0; 4], &|_| &[1.0, 1.0], &|p| &values[p], &spec(), 2);
        assert_eq!(out, [2.0, 2.0, 20.0, 20.0]);
    }

    #[test]
    fn weights_follow_the_scaled_products() {
        let keys = [[0.0, 0.0], [2.0, 2.0]];
        let values = [[0.0, 0.0], [1.0, 1.0]];
        let spec = AttnSpec { scale: 0.5, ..spec() };
        let out = attend(&[1.0, -1.0, 3.0, 900.0], &|p| &keys[p], &|p| &values[p], &spec, 2);
        for (out, score) in out.iter().zip([1.0f64, -1.0, 3.0, 900.0]) {
            let expected = 1.0 / (1.0 + (-score).exp());
            assert!((out - expected).abs() < 1e-15, "{out} for {score}, expected {expected}");
        }
    }

    #[test]
    fn a_window_counts_the_token_itself_and_reads_nothing_before() {
        let values = [[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]];
        let value = |p: usize| -> &[f64] { if p == 0 { panic!("outside the window") } else { &values[p] } };
        let out = attend(&[0.0; 4], &|_| &[1.0, 1.0], &value, &AttnSpec { window: Some(2), ..spec() }, 3);
        assert_eq!(out, [3.0; 4]);
        let wide = attend(&[0.0; 4], &|_| &[1.0, 1.0], &|p| &values[p], &AttnSpec { window: Some(3), ..spec() }, 2);
        assert_eq!(wide, [1.5; 4]);
    }

    #[test]
    fn capped_scores_stay_below_the_cap() {
        assert_eq!(soft_cap(7.5, None), 7.5);
        assert!((soft_cap(1e-3, Some(50.0)) - 1e-3).abs() < 1e-12);
        assert_eq!([soft_cap(1e9, Some(20.0)), soft_cap(-1e9, Some(20.0))], [20.0, -20.0]);
        // Both scores at the cap: equal weights whatever the products were.
        let keys = [[100.0, 100.0], [900.0, 900.0]];
        let values = [[0.0, 0.0], [1.0, 1.0]];
        let spec = AttnSpec { softcap: Some(2.0), ..spec() };
        let out = attend(&[1.0; 4], &|p| &keys[p], &|p| &values[p], &spec, 2);
        assert!(out.iter().all(|out| (out - 0.5).abs() < 1e-15), "{out:?}");
    }

    #[test]
    fn magnitude_bounds_what_errors_in_scores_do() {
        let keys = [[1.0, 1.0], [-2.0, 1.5], [0.5, 3.0]];
        let values = [[1.0, -1.0], [-4.0, 2.0], [2.5, 0.25]];
        let queries = [1.0, -2.0, 0.5, 3.0];
        let (out, magnitude) = attend_with_magnitude(&queries, &|p| &keys[p], &|p| &values[p], &spec(), 3);
        let error = 1e-6;
        for signs in 0..64 {
            let nudged =
                |p: usize, h: usize| keys[p][h] * (1.0 + if signs >> (p * 2 + h) & 1 == 1 { error } else { -error });
            let keys: Vec<[f64; 2]> = (0..3).map(|p| [nudged(p, 0), nudged(p, 1)]).collect();
            // A row that outlives the closure, as KV memory does.
            let moved = attend(&queries, &|p| &keys[p], &|p| &values[p], &spec(), 3);
            for ((moved, out), magnitude) in moved.iter().zip(&out).zip(&magnitude) {
                assert!((moved - out).abs() <= error * magnitude, "{moved} {out} {magnitude}");
            }
        }
    }
}
