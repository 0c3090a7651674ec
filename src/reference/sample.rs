//! Twin of `sample`: the exact distribution that a row of logits and sampling parameters mean, and the draw from it.
//!
//! [`process`](super::process) comes first. Then the order is vLLM's: temperature, min-p, top-k, top-p, each on what the one
//! before left. All three filters keep a set of likeliest tokens, so ranks are taken once.

use super::process::{Request, processed};
use crate::base::TokenId;
use crate::base::rng::{token_word, unit_interval};
use crate::runner::SampleFault;
use crate::sampling::{SamplingLists, SamplingRow};

/// A token and what decided it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// The token.
    pub token: TokenId,
    /// How much probability lies between the random number and the nearest token that would have been drawn instead;
    /// 1 if there is none. Below the rounding error of a kernel its choice may differ.
    pub margin: f64,
}

/// The tokens that can be drawn from [`processed`] logits and their probabilities, likeliest first (lower id first where
/// equal), sum 1.
///
/// - temperature 0: the likeliest token alone, the lowest id where several are equal;
/// - min-p drops tokens whose probability is below `min_p` times the largest;
/// - top-k drops tokens below the k-th largest logit, so tokens equal to it all stay;
/// - top-p, on the probabilities of what is left, keeps a token if the strictly likelier ones have less than `top_p`, so
///   that equal tokens stay or go together, as with top-k.
///
/// Empty if no token may come.
pub fn distribution(logits: &[f64], row: &SamplingRow) -> Vec<(TokenId, f64)> {
    let logit = |token: TokenId| logits[token as usize];
    let mut ranked: Vec<TokenId> = (0..logits.len() as TokenId).filter(|token| logit(*token).is_finite()).collect();
    // A stable sort: equal logits (zeros of both signs among them) stay in the order of their ids.
    ranked.sort_by(|&a, &b| logit(b).partial_cmp(&logit(a)).expect("finite logits have an order"));
    let Some(largest) = ranked.first().map(|&token| logit(token)) else { return Vec::new() };
    if row.temperature == 0.0 {
        return vec![(ranked[0], 1.0)];
    }

    let temperature = f64::from(row.temperature);
    let mut kept: Vec<(TokenId, f64)> =
        ranked.iter().map(|&token| (token, ((logit(token) - largest) / temperature).exp())).collect();
    kept.retain(|&(_, weight)| weight >= f64::from(row.min_p));

    let top_k = row.top_k as usize;
    if top_k > 0 && top_k < kept.len() {
        let threshold = logit(kept[top_k - 1].0);
        kept.retain(|&(token, _)| logit(token) >= threshold);
    }

    if row.top_p < 1.0 {
        let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
        // Mass of the tokens ranked so far, and of those strictly likelier than the current one.
        let (mut ranked_mass, mut likelier) = (0.0, 0.0);
        let mut current = largest;
        kept.retain(|&(token, weight)| {
            if logit(token) < current {
                (current, likelier) = (logit(token), ranked_mass);
            }
            ranked_mass += weight;
            likelier / total < f64::from(row.top_p)
        });
    }

    let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
    for (_, weight) in &mut kept {
        *weight /= total;
    }
    kept
}

/// [`distribution`] of a request that has nothing but `row`. Empty if a logit is not finite.
pub fn filtered_distribution(logits: &[f32], row: &SamplingRow) -> Vec<(TokenId, f64)> {
    processed(logits, &plain(row)).map_or(Vec::new(), |logits| distribution(&logits, row))
}

/// The token of `request` for the sequence's token number `index` (counting the prompt).
///
/// The draw inverts the cumulative distribution over ascending token ids at one uniform number, which depends on seed
/// and index alone: the first token whose cumulative probability exceeds it.
///
/// # Errors
/// A logit is not finite, or no token may come.
pub fn pick(logits: &[f32], request: &Request<'_>, index: u32) -> Result<Draw, SampleFault> {
    let logits = processed(logits, request).ok_or(SampleFault::NotFinite)?;
    let mut kept = distribution(&logits, request.row);
    kept.sort_by_key(|&(token, _)| token);
    draw(&kept, request.row.seed(), index).ok_or(SampleFault::NothingAllowed)
}

/// [`pick`] for a request that has nothing but `row`; `None` if a logit is not finite.
pub fn pick_plain(logits: &[f32], row: &SamplingRow, index: u32) -> Option<TokenId> {
    pick(logits, &plain(row), index).ok().map(|draw| draw.token)
}

fn plain(row: &SamplingRow) -> Request<'_> {
    const NO_LISTS: &SamplingLists =
        &SamplingLists { bias: Vec::new(), bad_words: Vec::new(), early_stops: Vec::new(), allowed: None };
    Request { row, lists: NO_LISTS, mask: None, history: &[], prompt_len: 0 }
}

/// Draws from `kept`, which is ordered by token id and sums to 1, as [`pick`] does for this seed and index. `None` if
/// it is empty.
pub fn draw(kept: &[(TokenId, f64)], seed: u64, index: u32) -> Option<Draw> {
    invert(kept, f64::from(unit_interval(token_word(seed, index))))
}

/// Inverts the cumulative distribution of `kept` (in its order) at `number` in (0, 1).
fn invert(kept: &[(TokenId, f64)], number: f64) -> Option<Draw> {
    let last = kept.len().checked_sub(1)?;
    let mut before = 0.0;
    for (rank, &(token, probability)) in kept.iter().enumerate() {
        let after = before + probability;
        // The last token also takes what rounding left between the sum and 1.
        if number < after || rank == last {
            let below = if rank == 0 { 1.0 } else { number - before };
            let above = if rank == last { 1.0 } else { after - number };
            return Some(Draw { token, margin: below.min(above) });
        }
        before = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::SamplingParams;

    fn row(params: SamplingParams) -> SamplingRow {
        SamplingRow::new(&params, 1, &[])
    }

    fn support(logits: &[f32], params: SamplingParams) -> Vec<TokenId> {
        filtered_distribution(logits, &row(params)).into_iter().map(|(token, _)| token).collect()
    }

    fn base() -> SamplingParams {
        SamplingParams { temperature: 1.0, ..Default::default() }
    }

    #[test]
    fn ties_stay_together_and_greedy_takes_the_lowest_id() {
        let logits = [2.0, 0.0, 1.0, 1.0, 1.0, -0.0];
        assert_eq!(support(&logits, SamplingParams { top_k: 2, ..base() }), [0, 2, 3, 4]);
        assert_eq!(support(&logits[2..5], SamplingParams { temperature: 0.0, ..base() }), [0]);
        // A third each: none is likelier than another, so none can be dropped.
        assert_eq!(support(&logits[2..5], SamplingParams { top_p: 0.5, ..base() }), [0, 1, 2]);
        // The first has e / (e + 3 + 2/e) = 0.42 of the mass, so that the three equal ones stay for 0.5 and the rest goes.
        assert_eq!(support(&logits, SamplingParams { top_p: 0.5, ..base() }), [0, 2, 3, 4]);
        assert_eq!(support(&logits, SamplingParams { top_p: 0.4, ..base() }), [0]);
    }

    #[test]
    fn the_signs_of_zeros_do_not_matter() {
        assert_eq!(support(&[-0.0, 0.0, -1.0], SamplingParams::default()), [0]);
        assert_eq!(support(&[-0.0, 0.0, -1.0], SamplingParams { top_k: 1, ..base() }), [0, 1]);
    }

    #[test]
    fn filters_work_on_what_is_left() {
        let logits: Vec<f32> = [8.0f64, 4.0, 2.0, 1.0, 1.0].iter().map(|p| p.ln() as f32).collect();
        assert_eq!(support(&logits, SamplingParams { min_p: 0.2, ..base() }), [0, 1, 2]);
        // After top-k the masses are 2/3 and 1/3: the second is needed for 0.7, though 0.5 + 0.25 is too.
        assert_eq!(support(&logits, SamplingParams { top_k: 2, top_p: 0.6, ..base() }), [0]);
        assert_eq!(support(&logits, SamplingParams { top_p: 0.6, ..base() }), [0, 1]);
        // Square roots of the probabilities: min-p sees them after the temperature.
        assert_eq!(support(&logits, SamplingParams { temperature: 2.0, min_p: 0.4, ..base() }), [0, 1, 2]);
    }

    #[test]
    fn bad_logits_have_no_token() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(pick_plain(&[0.0, bad, 1.0], &row(base()), 0), None);
            assert_eq!(pick_plain(&[0.0, bad, 1.0], &row(SamplingParams::default()), 0), None);
        }
    }

    #[test]
    fn a_number_selects_the_interval_it_lies_in() {
        let kept = [(3, 0.25), (5, 0.5), (9, 0.25)];
        let token = |number| invert(&kept, number).map(|draw| draw.token);
        assert_eq!(token(0.0), Some(3));
        assert_eq!(token(0.25), Some(5));
        assert_eq!(token(0.7499), Some(5));
        assert_eq!(token(0.75), Some(9));
        assert_eq!(token(1.0), Some(9));
        assert_eq!(invert(&kept, 0.375), Some(Draw { token: 5, margin: 0.125 }));
        assert_eq!(invert(&[(4, 1.0)], 0.5), Some(Draw { token: 4, margin: 1.0 }));
        assert_eq!(invert(&[], 0.5), None);
    }

    #[test]
    fn draws_depend_on_seed_and_index() {
        let logits = [0.0; 64];
        let seeded = |seed| SamplingRow::new(&base(), seed, &[]);
        let run = |row: &SamplingRow| (0..32).map(|index| pick_plain(&logits, row, index)).collect::<Vec<_>>();
        assert_eq!(run(&seeded(5)), run(&seeded(5)));
        assert_ne!(run(&seeded(5)), run(&seeded(6)));
        assert_ne!(run(&seeded(5)), run(&seeded(5 | 1 << 40)));
    }
}
