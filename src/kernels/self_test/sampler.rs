//! Cases of `sample_scan` and `sample_pick`.

use super::data::{Source, Spread};
use super::rig::{Dispatch, Rig, failed};
use super::{Found, Outcome};
use crate::base::TokenId;
use crate::kernels::sample::{self as kernel, SampleParams, Sampled, VOCAB_BLOCK};
use crate::layout::StepHeader;
use crate::layout::inputs::{BAD_LOGITS, NONE, SeqState};
use crate::reference;
use crate::reference::tolerance::{bound, check_close};
use crate::sampling::{SamplingParams, SamplingRow};
use bytemuck::Zeroable;

/// One wanted row. Each has a slot of its own.
#[derive(Clone, Debug)]
pub struct Row {
    /// How to sample.
    pub sampling: SamplingRow,
    /// Position of the input token.
    pub position: u32,
    /// First index that must not be generated.
    pub limit: u32,
    /// Token to score instead of sampling.
    pub scored: Option<TokenId>,
}

/// Some rows over the same or their own logits.
#[derive(Clone, Debug)]
pub struct Case {
    /// In a few words.
    pub name: String,
    /// One row of logits for all rows, or one for each.
    pub logits: Vec<Vec<f32>>,
    /// At least one.
    pub rows: Vec<Row>,
}

/// Roundings between logits and a sum over a vocabulary: a lane's share of a block, the lanes, the blocks.
const SUM_OPS: usize = 256;

/// Runs both kernels; what the device reported, and the slots afterwards.
///
/// # Errors
/// The device failed, two runs differ, or memory around an output was written.
pub fn run(rig: &Rig<'_>, case: &Case) -> Result<(Vec<Sampled>, Vec<SeqState>), String> {
    let vocab_size = case.logits[0].len();
    let block_count = vocab_size.div_ceil(VOCAB_BLOCK);
    let count = case.rows.len();
    // Rows share their logits by a stride of zero.
    let stride = if case.logits.len() == 1 { 0 } else { vocab_size };
    let logits = rig.input(&case.logits.concat()).map_err(failed)?;
    let states: Vec<SeqState> = (case.rows.iter())
        .map(|row| SeqState { position_limit: row.limit, sampling: row.sampling, ..SeqState::zeroed() })
        .collect();
    let rows: Vec<[u32; 4]> = case.rows.iter().enumerate().map(|(i, row)| [0, i as u32, row.position, 0]).collect();
    let entries: Vec<[u32; 4]> =
        (case.rows.iter().zip(0..)).map(|(row, index)| [index, index, row.scored.unwrap_or(NONE), 0]).collect();
    let inputs = rig.step_inputs(&StepHeader { sample_count: count as u32, ..Default::default() }, &entries);
    let inputs = inputs.map_err(failed)?;
    let rows = rig.input(&rows).map_err(failed)?;
    let params = SampleParams {
        vocab_size: vocab_size as u32,
        logits_stride: stride as u32,
        block_count: block_count as u32,
        first_sample: 0,
    };
    let params = rig.params(&params).map_err(failed)?;
    let slots = rig.output(&states).map_err(failed)?;
    let partials = rig.output(&vec![[u32::MAX; 4]; count * block_count]).map_err(failed)?;
    let sampled = rig.output(&vec![Sampled::zeroed(); count]).map_err(failed)?;
    let profile = &rig.gpu.profile;
    let dispatches = [
        Dispatch {
            variant: kernel::scan_variant(profile),
            arguments: vec![
                ("inputs", &inputs),
                ("slots", &slots.slice),
                ("logits", &logits),
                ("partials", &partials.slice),
                ("params", &params),
            ],
            grid: kernel::scan_grid(vocab_size, count),
        },
        Dispatch {
            variant: kernel::pick_variant(vocab_size, profile),
            arguments: vec![
                ("inputs", &inputs),
                ("slots", &slots.slice),
                ("rows", &rows),
                ("logits", &logits),
                ("partials", &partials.slice),
                ("sampled", &sampled.slice),
                ("params", &params),
            ],
            // A row of padding, as a bucket has it.
            grid: kernel::pick_grid(count + 1),
        },
    ];
    let found = rig.run(&dispatches, &[&sampled, &slots])?;
    Ok((bytemuck::cast_slice(&found[0]).to_vec(), bytemuck::cast_slice(&found[1]).to_vec()))
}

/// Checks every row against the twins: token, statistics, score, and what became of the slot.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn sample(rig: &Rig<'_>, case: &Case) -> Outcome {
    let (sampled, states) = run(rig, case)?;
    let lanes = kernel::pick_variant(case.logits[0].len(), &rig.gpu.profile).workgroup[0];
    let mut worst_share = 0.0f64;
    for (index, ((row, found), state)) in case.rows.iter().zip(&sampled).zip(&states).enumerate() {
        let logits = &case.logits[if case.logits.len() == 1 { 0 } else { index }];
        let share = check_row(row, found, state, logits, lanes).map_err(|error| format!("row {index}: {error}"))?;
        worst_share = worst_share.max(share);
    }
    let mut bits: Vec<u32> = bytemuck::cast_slice(&sampled).to_vec();
    bits.extend(bytemuck::cast_slice::<SeqState, u32>(&states));
    Ok(Found { bits, worst_share })
}

fn check_row(row: &Row, found: &Sampled, state: &SeqState, logits: &[f32], lanes: u32) -> Result<f64, String> {
    let before = SeqState { position_limit: row.limit, sampling: row.sampling, ..SeqState::zeroed() };
    let bad = logits.iter().any(|logit| !logit.is_finite());
    let mut share = 0.0;
    let token = match (bad, row.scored) {
        (true, _) => BAD_LOGITS,
        (false, Some(token)) => token,
        (false, None) => expected_token(row, found.token, logits, lanes)?,
    };
    if found.token != token {
        return Err(format!("the token is {}, not {token}", found.token));
    }
    if !bad {
        share = check_statistics(row, found, logits)?;
    }
    let expected = match row.scored {
        Some(_) => before,
        None => {
            let token = (!bad).then_some(token);
            let next = reference::advance::advance(row.position, token, &row.sampling, row.limit);
            // What is done reads no token; the device keeps a valid one there.
            let token = if bad { state.token } else { next.token };
            SeqState { token, position: next.position, done: u32::from(next.stopped), ..before }
        }
    };
    let in_vocabulary = (state.token as usize) < logits.len();
    match *state == expected && in_vocabulary {
        true => Ok(share),
        false => Err(format!("the slot became {state:?}, not {expected:?}")),
    }
}

/// The token that the row must get. Draws go through the tokens lane by lane; where the random number falls so close to a
/// border between two tokens that rounding decides, `found` may be either of those that may be drawn.
fn expected_token(row: &Row, found: TokenId, logits: &[f32], lanes: u32) -> Result<TokenId, String> {
    let mut kept = reference::sample::filtered_distribution(logits, &row.sampling);
    if row.sampling.temperature == 0.0 {
        return Ok(kept[0].0);
    }
    let weighted: f64 = {
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        let exponent = |token: TokenId| f64::from((largest - logits[token as usize]) / row.sampling.temperature);
        kept.iter().map(|&(token, probability)| probability * (4.0 + 2.0 * exponent(token))).sum()
    };
    kept.sort_by_key(|&(token, _)| (token % lanes, token));
    let seed = u64::from(row.sampling.seed_high) << 32 | u64::from(row.sampling.seed_low);
    let draw = reference::sample::draw(&kept, seed, row.position + 1).ok_or("nothing can be drawn")?;
    let close = draw.margin < bound(weighted, SUM_OPS);
    match close && kept.iter().any(|&(token, _)| token == found) {
        true => Ok(found),
        false => Ok(draw.token),
    }
}

fn check_statistics(row: &Row, found: &Sampled, logits: &[f32]) -> Result<f64, String> {
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    let exact = found.largest == largest && found.logit == logits[found.token as usize];
    if !exact {
        return Err(format!(
            "largest and own logit are {} and {}, the largest is {largest}",
            found.largest, found.logit
        ));
    }
    let temperature = match (row.scored, row.sampling.temperature) {
        (None, temperature) if temperature > 0.0 => f64::from(temperature),
        _ => 1.0,
    };
    let (mut sum, mut magnitude) = (0.0, 0.0);
    for &logit in logits {
        let exponent = (f64::from(logit) - f64::from(largest)) / temperature;
        sum += exponent.exp();
        magnitude += exponent.exp() * (4.0 + 2.0 * exponent.abs());
    }
    let close = check_close(&[found.sum], &[sum], &[magnitude], SUM_OPS)?;
    let Some(token) = row.scored else { return Ok(close.worst_share) };
    let twin = reference::score::logprob(logits, token);
    let allowed = bound(magnitude / sum + twin.abs(), SUM_OPS);
    match (found.logprob() - twin).abs() <= allowed {
        true => Ok(close.worst_share),
        false => Err(format!("token {token} scores {}, not {twin}, with a bound of {allowed:e}", found.logprob())),
    }
}

/// Distinct logits, so far apart that no filter's border is in doubt.
pub fn distinct_logits(vocab_size: usize, seed: u32) -> Vec<f32> {
    let order = Source::new(seed).shuffled(vocab_size);
    order.iter().map(|&rank| 4.0 - 1.5 * (1.0 + rank as f32).ln()).collect()
}

/// Every kind of sampling, with its name.
fn kinds() -> [(&'static str, SamplingParams); 6] {
    let plain = SamplingParams { temperature: 1.0, ..Default::default() };
    [
        ("greedy", SamplingParams::default()),
        ("temperature", SamplingParams { temperature: 0.7, ..plain.clone() }),
        ("top-k", SamplingParams { top_k: 20, ..plain.clone() }),
        ("top-p", SamplingParams { top_p: 0.83, ..plain.clone() }),
        ("min-p", SamplingParams { min_p: 0.011, ..plain.clone() }),
        ("all filters", SamplingParams { temperature: 1.3, top_k: 40, top_p: 0.83, min_p: 0.011, ..plain }),
    ]
}

fn row(params: &SamplingParams, seed: u64) -> Row {
    Row { sampling: SamplingRow::new(params, seed, &[3, 5]), position: 9 + seed as u32 % 7, limit: 14, scored: None }
}

/// Every kind of sampling over one row of a large vocabulary, and a score of its last token. The filters go through it some
/// seventy times, which is where software adapters lose count.
pub fn large_vocabulary(vocab_size: usize) -> Case {
    let mut rows: Vec<Row> = (1..).zip(&kinds()).map(|(seed, (_, params))| row(params, seed << 33 | seed)).collect();
    rows.push(Row { scored: Some(vocab_size as u32 - 1), ..rows[0].clone() });
    Case { name: format!("{vocab_size} tokens"), logits: vec![distinct_logits(vocab_size, 6)], rows }
}

/// One row for every kind of sampling, and two that are not finite.
pub fn doctor_cases() -> Vec<Case> {
    const VOCAB: usize = 1500;
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
    cases
}
