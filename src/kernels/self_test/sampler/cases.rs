//! Rows for the sampler: every kind of request, and the rows that have no token.

use super::super::data::{Source, Spread};
use super::{Case, Row};
use crate::base::TokenId;
use crate::sampling::{SamplingLists, SamplingParams, SamplingRow, TopLogprobs};

/// Distinct logits, so far apart that no filter's border is in doubt.
pub fn distinct_logits(vocab_size: usize, seed: u32) -> Vec<f32> {
    let order = Source::new(seed).shuffled(vocab_size);
    order.iter().map(|&rank| 4.0 - 1.5 * (1.0 + rank as f32).ln()).collect()
}

/// A row with `params` and nothing else at `position`, that nothing ends.
pub fn plain_row(params: &SamplingParams, seed: u64, position: u32) -> Row {
    Row {
        sampling: SamplingRow::new(params, seed, &[]),
        lists: SamplingLists::default(),
        position,
        history: Vec::new(),
        prompt_len: 0,
        limit: u32::MAX,
        scored: None,
    }
}

/// The row of a request with `lists` after `prompt` and `output`, one of which has tokens.
pub fn full_row(
    params: &SamplingParams,
    lists: &SamplingLists,
    prompt: &[TokenId],
    output: &[TokenId],
    seed: u64,
) -> Row {
    let history = [prompt, output].concat();
    let mut row = plain_row(params, seed, history.len() as u32 - 1);
    row.sampling = row.sampling.with_lists(lists);
    Row { lists: lists.clone(), history, prompt_len: prompt.len() as u32, ..row }
}

/// Every kind of filter, with its name.
fn kinds() -> [(&'static str, SamplingParams); 7] {
    let plain = SamplingParams { temperature: 1.0, ..Default::default() };
    [
        ("greedy", SamplingParams::default()),
        ("temperature", SamplingParams { temperature: 0.7, ..plain.clone() }),
        ("top-k", SamplingParams { top_k: 20, ..plain.clone() }),
        ("top-k of many", SamplingParams { top_k: 200, ..plain.clone() }),
        ("top-p", SamplingParams { top_p: 0.83, ..plain.clone() }),
        ("min-p", SamplingParams { min_p: 0.011, ..plain.clone() }),
        ("all filters", SamplingParams { temperature: 1.3, top_k: 40, top_p: 0.83, min_p: 0.011, ..plain }),
    ]
}

fn row(params: &SamplingParams, seed: u64) -> Row {
    let sampling = SamplingRow::new(params, seed, &[3, 5]);
    Row { sampling, limit: 14, ..plain_row(params, seed, 9 + seed as u32 % 7) }
}

/// Every kind of sampling over one row of a large vocabulary, and a score of its last token. Searches go through it many times,
/// which is where software adapters lose count.
pub fn large_vocabulary(vocab_size: usize) -> Case {
    let mut rows: Vec<Row> = (1..).zip(&kinds()).map(|(seed, (_, params))| row(params, seed << 33 | seed)).collect();
    rows.push(Row { scored: Some(vocab_size as u32 - 1), ..rows[0].clone() });
    Case { name: format!("{vocab_size} tokens"), logits: vec![distinct_logits(vocab_size, 6)], rows }
}

/// A large vocabulary of equal logits, so that all filters and log-probabilities are searched.
pub fn large_and_level(vocab_size: usize) -> Case {
    let params = SamplingParams { temperature: 1.0, top_k: 200, top_p: 0.5, ..Default::default() };
    let params = SamplingParams { logprobs: Some(TopLogprobs::Most(5)), ..params };
    let rows = vec![row(&params, 1)];
    Case { name: format!("{vocab_size} equal tokens"), logits: vec![vec![0.5; vocab_size]], rows }
}

const VOCAB: usize = 1500;

/// Rows of every kind, and some that are not finite.
pub fn doctor_cases() -> Vec<Case> {
    let kinds = kinds();
    let mut cases: Vec<Case> = (kinds.iter())
        .map(|(name, params)| Case {
            name: (*name).into(),
            logits: vec![distinct_logits(VOCAB, 5)],
            rows: (0..8).map(|seed| row(params, seed << 31 | seed)).collect(),
        })
        .collect();
    let rows = [0, 7, 1499].map(|token| Row { scored: Some(token), ..row(&kinds[0].1, 1) }).to_vec();
    cases.push(Case { name: "scores".into(), logits: vec![Source::new(8).numbers(VOCAB, Spread::Plain)], rows });
    let mut logits: Vec<Vec<f32>> = (0..4).map(|seed| distinct_logits(VOCAB, seed)).collect();
    (logits[1][1024], logits[2][0]) = (f32::NAN, f32::NEG_INFINITY);
    let rows = (0..4).map(|seed| row(&kinds[seed as usize % 2].1, seed)).collect();
    cases.push(Case { name: "not finite".into(), logits, rows });
    cases.extend([rules(), nothing(), logprobs(), level()]);
    cases
}

/// Every rule alone and all of them together, greedily and drawn.
fn rules() -> Case {
    let mut source = Source::new(31);
    let prompt: Vec<TokenId> = (0..40).map(|_| source.below(VOCAB as u32)).collect();
    // Tokens of both sides, some of them often.
    let mut output: Vec<TokenId> = (0..60).map(|_| source.below(VOCAB as u32) % 97).collect();
    output.extend([1490, 7, 8, 1200]);
    let logits = distinct_logits(VOCAB, 5);
    let best = (0..VOCAB as TokenId).max_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize])).unwrap_or(0);
    let bias = vec![(3, 2.5), (best, -100.0), (1499, 4.25), (1023, -1.0), (1024, 100.0)];
    let bad_words = vec![vec![best], vec![7, 8, 1200, 11], vec![8, 9, 12], vec![1200, 1498], vec![1200]];
    let lists = [
        SamplingLists::default(),
        SamplingLists { bias: bias.clone(), ..Default::default() },
        SamplingLists { bad_words: bad_words.clone(), ..Default::default() },
        SamplingLists { early_stops: vec![best, 0, 1024], ..Default::default() },
        SamplingLists { allowed: Some(vec![5, 31, 32, 1023, 1024, 1499]), ..Default::default() },
        SamplingLists { bias, bad_words, early_stops: vec![best, 5], allowed: Some((0..1400).collect()) },
    ];
    let plain = SamplingParams::default();
    let penalties = [
        plain.clone(),
        SamplingParams { repetition_penalty: 1.7, ..plain.clone() },
        SamplingParams { frequency_penalty: 0.3, presence_penalty: -0.7, ..plain.clone() },
        SamplingParams { repetition_penalty: 0.8, frequency_penalty: -0.1, presence_penalty: 1.5, ..plain },
    ];
    let mut rows = Vec::new();
    for (number, lists) in lists.iter().enumerate() {
        for (kind, penalty) in penalties.iter().enumerate() {
            let seed = (7 * number + kind) as u64;
            let filters = [
                SamplingParams { ..penalty.clone() },
                SamplingParams { temperature: 0.9, ..penalty.clone() },
                SamplingParams { temperature: 1.2, top_k: 33, top_p: 0.9, ..penalty.clone() },
            ];
            for (min_tokens, params) in [64, 65, 10].into_iter().zip(filters) {
                let params = SamplingParams { min_tokens, ..params };
                rows.push(full_row(&params, lists, &prompt, &output, seed << 30 | seed));
            }
        }
    }
    for row in rows.iter_mut().step_by(5) {
        row.sampling.token_limit = 1300;
    }
    Case { name: "rules of requests".into(), logits: vec![logits], rows }
}

/// Requests that leave one token, or none.
fn nothing() -> Case {
    let lists = |allowed: &[TokenId], bad: &[TokenId]| SamplingLists {
        allowed: Some(allowed.to_vec()),
        bad_words: bad.iter().map(|token| vec![*token]).collect(),
        ..Default::default()
    };
    let filtered = SamplingParams { temperature: 1.0, top_p: 0.5, ..Default::default() };
    let plain = SamplingParams { temperature: 1.0, ..Default::default() };
    let mut rows = Vec::new();
    for params in [&SamplingParams::default(), &plain, &filtered] {
        for lists in [lists(&[1499], &[]), lists(&[], &[]), lists(&[7, 1030], &[1030, 7]), lists(&[7, 1030], &[7])] {
            rows.push(full_row(params, &lists, &[1], &[2], rows.len() as u64));
        }
    }
    Case { name: "nothing is left".into(), logits: vec![distinct_logits(VOCAB, 9)], rows }
}

/// Every number of alternatives, with sampled and with scored tokens, over distinct logits.
fn logprobs() -> Case {
    Case { name: "log-probabilities".into(), logits: vec![distinct_logits(VOCAB, 12)], rows: logprob_rows() }
}

/// Equal logits: ties at every border, and more candidates than there is room for.
fn level() -> Case {
    let mut rows = logprob_rows();
    rows.extend(kinds().iter().map(|(_, params)| row(params, 3)));
    let mut logits = vec![0.25; VOCAB];
    (logits[700], logits[701], logits[9]) = (0.5, -0.5, 1.0);
    Case { name: "ties".into(), logits: vec![logits], rows }
}

fn logprob_rows() -> Vec<Row> {
    use TopLogprobs::{All, Most};
    let kinds = kinds();
    let mut rows = Vec::new();
    for (number, wanted) in (0..).zip([Most(0), Most(1), Most(5), Most(63), Most(64), Most(65), All]) {
        let params = SamplingParams {
            logprobs: Some(wanted),
            prompt_logprobs: Some(wanted),
            ..kinds[number as usize % kinds.len()].1.clone()
        };
        rows.push(row(&params, number));
        rows.push(Row { scored: Some(700 + number as u32), ..row(&params, number) });
    }
    rows
}
