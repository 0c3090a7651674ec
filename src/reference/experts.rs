//! Twin of `route_experts` and `combine_experts`: which experts compute a token, and how their outputs become one.

/// The experts of one token as (expert, weight), in the order of the experts: the `chosen` largest of `logits`, ties by
/// lower index, weighted by the softmax over all experts or, with `normalize`, over the chosen ones.
pub fn route(logits: &[f64], chosen: usize, normalize: bool) -> Vec<(usize, f64)> {
    assert!(chosen <= logits.len(), "{chosen} of {} experts", logits.len());
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // Adding zero makes zeros of both signs one tie, as they are to the device.
    order.sort_by(|&a, &b| (logits[b] + 0.0).total_cmp(&(logits[a] + 0.0)).then(a.cmp(&b)));
    order.truncate(chosen);
    order.sort();
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let share = |expert: usize| (logits[expert] - largest).exp();
    let total: f64 = match normalize {
        true => order.iter().map(|&expert| share(expert)).sum(),
        false => (0..logits.len()).map(share).sum(),
    };
    order.into_iter().map(|expert| (expert, share(expert) / total)).collect()
}

/// The sum of the experts' outputs, each `width` long and in the order of `route`, times their weights.
pub fn combine(route: &[(usize, f64)], outputs: &[f64], width: usize) -> Vec<f64> {
    assert_eq!(outputs.len(), route.len() * width, "one output for each chosen expert");
    let mut sum = vec![0.0; width];
    for ((_, weight), output) in route.iter().zip(outputs.chunks(width)) {
        for (sum, value) in sum.iter_mut().zip(output) {
            *sum += weight * value;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_are_chosen_and_ties_go_to_the_lower_index() {
        let chosen = |logits: &[f64], count| route(logits, count, false).iter().map(|(e, _)| *e).collect::<Vec<_>>();
        assert_eq!(chosen(&[0.0, 3.0, 1.0, 2.0], 2), [1, 3]);
        assert_eq!(chosen(&[1.0, 0.0, 1.0, 1.0], 2), [0, 2]);
        assert_eq!(chosen(&[1.0; 4], 4), [0, 1, 2, 3]);
        assert_eq!(chosen(&[-0.0, -1.0, 0.0], 1), [0]);
    }

    #[test]
    fn weights_are_a_softmax_over_all_or_over_the_chosen() {
        let logits = [0.0, 4f64.ln(), 900.0 - 900.0, 3f64.ln()];
        for (normalize, expected) in [(false, [4.0 / 9.0, 3.0 / 9.0]), (true, [4.0 / 7.0, 3.0 / 7.0])] {
            for ((_, weight), expected) in route(&logits, 2, normalize).iter().zip(expected) {
                assert!((weight - expected).abs() < 1e-15);
            }
        }
        assert_eq!(combine(&[(1, 0.25), (3, 0.5)], &[4.0, 8.0, 2.0, -2.0], 2), [2.0, 1.0]);
    }
}
