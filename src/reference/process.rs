//! Twin of the first half of `sample`: the model's logits after the request's own rules, before temperature and filters.
//!
//! The order is that of vLLM's V1 sampler: which tokens may come at all (mask, bad words, ends before `min_tokens`, padding of
//! the vocabulary), then bias, repetition, frequency and presence penalties.

use crate::base::TokenId;
use crate::sampling::{SamplingLists, SamplingRow};

/// What decides about a token besides the logits.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Parameters of fixed size.
    pub row: &'a SamplingRow,
    /// The others, but for `allowed`, which is a mask here.
    pub lists: &'a SamplingLists,
    /// Bit i % 32 of word i / 32 allows token i; all are allowed without one.
    pub mask: Option<&'a [u32]>,
    /// The tokens so far, the prompt's first.
    pub history: &'a [TokenId],
    /// How many of them are the prompt's.
    pub prompt_len: usize,
}

impl<'a> Request<'a> {
    fn output(&self) -> &'a [TokenId] {
        &self.history[self.prompt_len.min(self.history.len())..]
    }
}

/// Logits after the request's own rules, minus infinity for tokens that may not come; `None` if a logit is not finite.
///
/// - a token may come if the mask allows it, it is below `token_limit`, it would not complete a bad word (the output ends with all
///   of the word's tokens but the last), and it is no early stop or `min_tokens` have been output;
/// - a bias is added;
/// - `repetition_penalty`: a positive logit of a token of prompt or output is divided by it, another multiplied;
/// - `frequency_penalty` is taken off as often as the output has the token, `presence_penalty` once if it does.
pub fn processed(logits: &[f32], request: &Request<'_>) -> Option<Vec<f64>> {
    if logits.iter().any(|logit| !logit.is_finite()) {
        return None;
    }
    let Request { row, lists, mask, history, prompt_len } = *request;
    let output = request.output();
    let mut counts = vec![0u32; logits.len()];
    let mut in_history = vec![false; logits.len()];
    for (position, &token) in history.iter().enumerate() {
        // Positions that nobody told us about hold no token.
        if let Some(seen) = in_history.get_mut(token as usize) {
            *seen = true;
            counts[token as usize] += u32::from(position >= prompt_len);
        }
    }
    let mut values: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
    for &(token, bias) in &lists.bias {
        if let Some(value) = values.get_mut(token as usize) {
            *value += f64::from(bias);
        }
    }
    for (token, value) in values.iter_mut().enumerate() {
        if in_history[token] {
            let penalty = f64::from(row.repetition_penalty);
            *value = if *value > 0.0 { *value / penalty } else { *value * penalty };
        }
        *value -= f64::from(row.frequency_penalty) * f64::from(counts[token]);
        if counts[token] > 0 {
            *value -= f64::from(row.presence_penalty);
        }
    }
    let mut drop = |token: TokenId| {
        if let Some(value) = values.get_mut(token as usize) {
            *value = f64::NEG_INFINITY;
        }
    };
    for token in 0..logits.len() as TokenId {
        let allowed = mask.is_none_or(|mask| mask[token as usize / 32] >> (token % 32) & 1 == 1);
        if !allowed || token >= row.token_limit {
            drop(token);
        }
    }
    for word in &lists.bad_words {
        if let Some((last, before)) = word.split_last()
            && output.ends_with(before)
        {
            drop(*last);
        }
    }
    if output.len() < row.min_tokens as usize {
        lists.early_stops.iter().copied().for_each(drop);
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::SamplingParams;

    fn row(params: SamplingParams) -> SamplingRow {
        SamplingRow::new(&params, 0, &[])
    }

    fn run(row: &SamplingRow, lists: &SamplingLists, history: &[TokenId], prompt_len: usize) -> Vec<f64> {
        processed(&[1.0, -2.0, 3.0, 0.5], &Request { row, lists, mask: None, history, prompt_len }).unwrap()
    }

    const GONE: f64 = f64::NEG_INFINITY;

    #[test]
    fn penalties_come_after_the_bias_and_in_their_order() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            frequency_penalty: 0.25,
            presence_penalty: 0.5,
            ..Default::default()
        };
        let lists = SamplingLists { bias: vec![(0, -3.0), (9, 1.0)], ..Default::default() };
        // Token 0 is in the prompt alone: (1 - 3) * 2. Token 2 came twice: 3 / 2 - 2 * 0.25 - 0.5.
        assert_eq!(run(&row(params), &lists, &[0, 2, 2], 1), [-4.0, -2.0, 0.5, 0.5]);
    }

    #[test]
    fn bad_words_look_at_the_output_alone() {
        let lists = SamplingLists { bad_words: vec![vec![1], vec![2, 0, 3]], ..Default::default() };
        let row = row(SamplingParams::default());
        assert_eq!(run(&row, &lists, &[2, 0], 0), [1.0, GONE, 3.0, GONE]);
        assert_eq!(run(&row, &lists, &[2, 0], 1), [1.0, GONE, 3.0, 0.5]);
        assert_eq!(run(&row, &lists, &[2, 0, 1], 0), [1.0, GONE, 3.0, 0.5]);
    }

    #[test]
    fn ends_wait_for_enough_outputs_and_padding_never_comes() {
        let lists = SamplingLists { early_stops: vec![0, 2], ..Default::default() };
        let row = SamplingRow { token_limit: 3, ..row(SamplingParams { min_tokens: 2, ..Default::default() }) };
        assert_eq!(run(&row, &lists, &[1, 1, 1], 2), [GONE, -2.0, GONE, GONE]);
        assert_eq!(run(&row, &lists, &[1, 1, 1], 1), [1.0, -2.0, 3.0, GONE]);
    }

    #[test]
    fn a_mask_drops_whatever_the_bias_says() {
        let lists = SamplingLists { bias: vec![(1, 100.0)], ..Default::default() };
        let row = row(SamplingParams::default());
        let request = Request { row: &row, lists: &lists, mask: Some(&[0b1100]), history: &[], prompt_len: 0 };
        assert_eq!(processed(&[1.0, -2.0, 3.0, 0.5], &request).unwrap(), [GONE, GONE, 3.0, 0.5]);
        assert_eq!(processed(&[1.0, f32::NAN, 3.0, 0.5], &request), None);
    }
}
