//! The sampler's three passes against their twins: one bench for all cases, which stand in [`cases`].

pub mod cases;

use super::rig::{Dispatch, Rig, failed};
use super::{Found, Outcome};
use crate::base::TokenId;
use crate::kernels::sample::{self as kernel, PARTIAL_BYTES, SampleParams, Sampled, VOCAB_BLOCK, sort_key};
use crate::layout::StepHeader;
use crate::layout::inputs::{BAD_LOGITS, ENTRIES_PER_SAMPLE, NONE, NOTHING_ALLOWED, SeqState};
use crate::reference::process::{Request, processed};
use crate::reference::tolerance::{bound, check_close};
use crate::reference::{advance, sample, score};
use crate::sampling::lists::{fill_mask, mask_words};
use crate::sampling::row::{MAX_DEVICE_LOGPROBS, NO_LOGPROBS, logprob_entries};
use crate::sampling::{SamplingLists, SamplingRow};
use bytemuck::Zeroable;

/// One wanted row. Each has a slot of its own.
#[derive(Clone, Debug)]
pub struct Row {
    /// How to sample.
    pub sampling: SamplingRow,
    /// The parameters without a fixed size.
    pub lists: SamplingLists,
    /// Position of the input token.
    pub position: u32,
    /// Tokens up to that position, where the request looks at them.
    pub history: Vec<TokenId>,
    /// How many of them are the prompt's.
    pub prompt_len: u32,
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

/// What came of the rows.
#[derive(Clone, Debug)]
pub struct Outputs {
    /// What the device reported of each.
    pub sampled: Vec<Sampled>,
    /// The slots afterwards.
    pub states: Vec<SeqState>,
    /// Logits after the rules of each row's request; unwritten where it has none.
    pub processed: Vec<Vec<f32>>,
    /// Entries of log-probabilities of each.
    pub entries: Vec<Vec<[u32; 2]>>,
}

/// Roundings between logits and a sum over a vocabulary: a lane's share of a block, the lanes, the blocks.
const SUM_OPS: usize = 256;
/// Shares of probability that so many roundings may move a filter's border by.
const BORDER: f32 = 2e-5;

impl Row {
    fn wants(&self) -> u32 {
        if self.scored.is_some() { self.sampling.prompt_logprobs } else { self.sampling.logprobs }
    }

    fn has_rules(&self) -> bool {
        let row = &self.sampling;
        let penalties = [row.repetition_penalty - 1.0, row.presence_penalty, row.frequency_penalty];
        !self.lists.is_empty() || penalties.iter().any(|penalty| *penalty != 0.0)
    }

    fn mask(&self, vocab_size: usize) -> Option<Vec<u32>> {
        let mut mask = vec![0; mask_words(vocab_size)];
        fill_mask(&mut mask, self.lists.allowed.as_deref()?);
        Some(mask)
    }

    /// The twin's logits, with its mask in `mask`; `None` if some are not finite.
    pub fn processed(&self, logits: &[f32]) -> Option<Vec<f64>> {
        let mask = self.mask(logits.len());
        let (row, lists) = (&self.sampling, &self.lists);
        let history = &self.history;
        let request = Request { row, lists, mask: mask.as_deref(), history, prompt_len: self.prompt_len as usize };
        processed(logits, &request)
    }

    fn state(&self) -> SeqState {
        SeqState {
            position_limit: self.limit,
            prompt_len: self.prompt_len,
            sampling: self.sampling,
            ..SeqState::zeroed()
        }
    }
}

impl Case {
    /// The logits of row `index`.
    pub fn logits_of(&self, index: usize) -> &[f32] {
        &self.logits[if self.logits.len() == 1 { 0 } else { index }]
    }

    /// The sampler's memory of all rows' slots, and in `header` where everything is: no wider than these rows need.
    fn side(&self, header: &mut StepHeader) -> Vec<u32> {
        let vocab_size = self.logits[0].len();
        let longest = |words: fn(&Row) -> usize| self.rows.iter().map(words).max().unwrap_or(0);
        let lists_at = longest(|row| row.history.len());
        let mask_at = lists_at + longest(|row| row.lists.words());
        let stride = mask_at + mask_words(vocab_size);
        let mut words = vec![0; stride * self.rows.len()];
        let mut lists = Vec::new();
        for (row, region) in self.rows.iter().zip(words.chunks_mut(stride)) {
            region[..row.history.len()].copy_from_slice(&row.history);
            lists.clear();
            row.lists.write(&mut lists);
            region[lists_at..][..lists.len()].copy_from_slice(&lists);
            if let Some(mask) = row.mask(vocab_size) {
                region[mask_at..].copy_from_slice(&mask);
            }
        }
        [header.side_stride, header.lists_at, header.mask_at] = [stride, lists_at, mask_at].map(|at| at as u32);
        words
    }
}

/// How often the same is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    /// Where only results count.
    Once,
    /// Both must give the same bits.
    Twice,
}

/// Runs the passes.
///
/// # Errors
/// The device failed, two runs differ, or memory around an output was written.
pub fn run(rig: &Rig<'_>, case: &Case) -> Result<Outputs, String> {
    run_passes(rig, case, Runs::Twice)
}

/// Runs the passes once, for many draws.
///
/// # Errors
/// The device failed, or memory around an output was written.
pub fn draws(rig: &Rig<'_>, case: &Case) -> Result<Vec<TokenId>, String> {
    Ok(run_passes(rig, case, Runs::Once)?.sampled.iter().map(|sampled| sampled.token).collect())
}

fn run_passes(rig: &Rig<'_>, case: &Case, runs: Runs) -> Result<Outputs, String> {
    let vocab_size = case.logits[0].len();
    let block_count = vocab_size.div_ceil(VOCAB_BLOCK);
    let count = case.rows.len();
    // Rows share their logits by a stride of zero.
    let stride = if case.logits.len() == 1 { 0 } else { vocab_size };
    let mut result_entries = count * ENTRIES_PER_SAMPLE;
    let mut entries: Vec<[u32; 4]> = Vec::with_capacity(count);
    for (row, index) in case.rows.iter().zip(0..) {
        let at = if row.wants() == NO_LOGPROBS { NONE } else { result_entries as u32 };
        entries.push([index, index, row.scored.unwrap_or(NONE), at]);
        result_entries += logprob_entries(row.wants(), vocab_size as u32) as usize;
    }
    let mut header = StepHeader { sample_count: count as u32, ..Default::default() };
    let side = case.side(&mut header);
    let rows: Vec<[u32; 4]> = case.rows.iter().enumerate().map(|(i, row)| [0, i as u32, row.position, 0]).collect();
    let model_logits = case.logits.concat();
    let params = SampleParams {
        vocab_size: vocab_size as u32,
        logits_stride: stride as u32,
        processed_at: model_logits.len() as u32,
        processed_stride: vocab_size as u32,
        block_count: block_count as u32,
        first_sample: 0,
        reserved: [0; 2],
    };
    let states: Vec<SeqState> = case.rows.iter().map(Row::state).collect();
    let inputs = rig.step_inputs(&header, &entries).map_err(failed)?;
    let unwritten = vec![f32::from_bits(u32::MAX); count * vocab_size];
    let logits = rig.output(&[&model_logits[..], &unwritten].concat()).map_err(failed)?;
    let rows = rig.input(&rows).map_err(failed)?;
    let side = rig.input(&side).map_err(failed)?;
    let params = rig.params(&params).map_err(failed)?;
    let slots = rig.output(&states).map_err(failed)?;
    let partials = rig.output(&vec![u32::MAX; count * block_count * PARTIAL_BYTES / 4]).map_err(failed)?;
    let sampled = rig.output(&vec![0u32; result_entries * 2]).map_err(failed)?;
    let profile = &rig.gpu.profile;
    let mut dispatches = vec![
        Dispatch {
            variant: kernel::scan_variant(profile),
            arguments: vec![
                ("inputs", &inputs),
                ("slots", &slots.slice),
                ("rows", &rows),
                ("side", &side),
                ("logits", &logits.slice),
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
                ("logits", &logits.slice),
                ("partials", &partials.slice),
                ("sampled", &sampled.slice),
                ("params", &params),
            ],
            // A row of padding, as a bucket has it.
            grid: kernel::row_grid(count + 1),
        },
    ];
    if case.rows.iter().any(|row| row.wants() != NO_LOGPROBS) {
        dispatches.push(Dispatch {
            variant: kernel::logprobs_variant(vocab_size, profile),
            arguments: vec![
                ("inputs", &inputs),
                ("slots", &slots.slice),
                ("logits", &logits.slice),
                ("results", &sampled.slice),
                ("params", &params),
            ],
            grid: kernel::row_grid(count + 1),
        });
    }
    let outputs = [&sampled, &slots, &logits];
    let found = match runs {
        Runs::Once => rig.run_single(&dispatches, &outputs)?,
        Runs::Twice => rig.run(&dispatches, &outputs)?,
    };
    let (samples, rest) = found[0].split_at(count * ENTRIES_PER_SAMPLE * 2);
    let mut rest: &[[u32; 2]] = bytemuck::cast_slice(rest);
    let entries = case.rows.iter().map(|row| {
        let (own, after) = rest.split_at(logprob_entries(row.wants(), vocab_size as u32) as usize);
        rest = after;
        own.to_vec()
    });
    Ok(Outputs {
        entries: entries.collect(),
        sampled: bytemuck::cast_slice(samples).to_vec(),
        states: bytemuck::cast_slice(&found[1]).to_vec(),
        processed: bytemuck::cast_slice(&found[2][model_logits.len()..])
            .chunks(vocab_size)
            .map(<[f32]>::to_vec)
            .collect(),
    })
}

/// The distribution that the device drew row `index` from, by token; that of a greedy row is its token.
pub fn drawn_from(case: &Case, outputs: &Outputs, index: usize) -> Vec<(TokenId, f64)> {
    let (row, sampled) = (&case.rows[index], &outputs.sampled[index]);
    if row.sampling.temperature == 0.0 {
        return vec![(sampled.token, 1.0)];
    }
    let logits = if row.has_rules() { &outputs.processed[index] } else { case.logits_of(index) };
    let survives = |token: &TokenId| {
        *token < row.sampling.token_limit
            && sort_key(logits[*token as usize]) >= sampled.key.max(1 + sort_key(f32::MIN))
    };
    let tokens: Vec<TokenId> = (0..logits.len() as TokenId).filter(survives).collect();
    let largest = tokens.iter().map(|token| logits[*token as usize]).fold(f32::MIN, f32::max);
    let weight = |token: &TokenId| {
        ((f64::from(logits[*token as usize]) - f64::from(largest)) / f64::from(row.sampling.temperature)).exp()
    };
    let total: f64 = tokens.iter().map(weight).sum();
    tokens.iter().map(|token| (*token, weight(token) / total)).collect()
}

/// Checks every row against the twins: distribution, token, statistics, log-probabilities, and what became of the slot.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn sample(rig: &Rig<'_>, case: &Case) -> Outcome {
    let outputs = run(rig, case)?;
    let mut worst_share = 0.0f64;
    for index in 0..case.rows.len() {
        let share = check_row(case, &outputs, index).map_err(|error| format!("row {index}: {error}"))?;
        worst_share = worst_share.max(share);
    }
    let mut bits: Vec<u32> = bytemuck::cast_slice(&outputs.sampled).to_vec();
    bits.extend(bytemuck::cast_slice::<SeqState, u32>(&outputs.states));
    bits.extend(outputs.entries.iter().flatten().flatten());
    Ok(Found { bits, worst_share })
}

fn check_row(case: &Case, outputs: &Outputs, index: usize) -> Result<f64, String> {
    let (row, logits) = (&case.rows[index], case.logits_of(index));
    let (found, state) = (&outputs.sampled[index], &outputs.states[index]);
    let twin = row.processed(logits);
    let token = match (&twin, row.scored) {
        (None, _) => BAD_LOGITS,
        (Some(_), Some(token)) => token,
        (Some(twin), None) => expected_token(row, found.token, twin, &drawn_from(case, outputs, index))?,
    };
    if found.token != token {
        return Err(format!("the token is {}, not {token}", found.token));
    }
    let token = Some(token).filter(|token| *token < NOTHING_ALLOWED);
    let mut share = 0.0;
    if let Some(token) = token.filter(|_| row.scored.is_some() || row.wants() != NO_LOGPROBS) {
        share = check_statistics(row, found, logits)?;
        check_logprobs(row, token, found, &outputs.entries[index], logits)?;
    }
    let expected = match row.scored {
        Some(_) => row.state(),
        None => {
            let next = advance::advance(row.position, token, &row.sampling, row.limit);
            // What is done reads no token; the device keeps a valid one there.
            let token = if token.is_none() { state.token } else { next.token };
            SeqState { token, position: next.position, done: u32::from(next.stopped), ..row.state() }
        }
    };
    let in_vocabulary = (state.token as usize) < logits.len();
    match *state == expected && in_vocabulary {
        true => Ok(share),
        false => Err(format!("the slot became {state:?}, not {expected:?}")),
    }
}

/// The token that the row must get from the `twin`'s logits, after a look at the distribution that the device has `drawn` it from.
/// Where the random number falls so close to a border between two tokens that rounding decides, or where rounding decides which
/// tokens the filters keep, `found` may be any of those that may be drawn.
fn expected_token(row: &Row, found: TokenId, twin: &[f64], drawn: &[(TokenId, f64)]) -> Result<TokenId, String> {
    let mut kept = sample::distribution(twin, &row.sampling);
    let Some(&(likeliest, _)) = kept.first() else { return Ok(NOTHING_ALLOWED) };
    let logit = |token: TokenId| twin.get(token as usize).copied().unwrap_or(f64::NEG_INFINITY);
    let rounding = if row.has_rules() { 1e-6 * (1.0 + logit(likeliest).abs()) } else { 0.0 };
    if row.sampling.temperature == 0.0 {
        let close = rounding > 0.0 && logit(found) >= logit(likeliest) - rounding;
        return Ok(if close { found } else { likeliest });
    }
    let temperature = f64::from(row.sampling.temperature);
    let exponent = |token: TokenId| (logit(likeliest) - logit(token)) / temperature;
    kept.sort_by_key(|&(token, _)| token);
    let tokens = |kept: &[(TokenId, f64)]| kept.iter().map(|(token, _)| *token).collect::<Vec<_>>();
    if tokens(&kept) != tokens(drawn) {
        check_border(row, twin, &tokens(drawn))?;
        return Ok(if drawn.iter().any(|(token, _)| *token == found) { found } else { NONE });
    }
    for (&(token, exact), &(_, ours)) in kept.iter().zip(drawn) {
        // Rounded logits move their own weight, and all of them the sum.
        let share = 2.0 * rounding / temperature + bound(8.0 + 4.0 * exponent(token).abs(), 2);
        if (ours - exact).abs() > share * exact {
            return Err(format!("token {token} has probability {ours}, not {exact}"));
        }
    }
    let weighted: f64 = kept.iter().map(|&(token, p)| p * (4.0 + 2.0 * exponent(token))).sum();
    let draw = sample::draw(&kept, row.sampling.seed(), row.position + 1).ok_or("nothing can be drawn")?;
    let close = draw.margin < bound(weighted, SUM_OPS) + 4.0 * rounding / temperature;
    match close && kept.iter().any(|&(token, _)| token == found) {
        true => Ok(found),
        false => Ok(draw.token),
    }
}

/// Filters that are a little wider must keep all of `drawn`, filters that are a little narrower nothing else.
fn check_border(row: &Row, twin: &[f64], drawn: &[TokenId]) -> Result<(), String> {
    let kept = |share: f32| {
        let (top_p, min_p) = (row.sampling.top_p * (1.0 + share), row.sampling.min_p * (1.0 - share));
        let top_p = if row.sampling.top_p < 1.0 { top_p } else { 1.0 };
        let kept = sample::distribution(twin, &SamplingRow { top_p, min_p, ..row.sampling });
        kept.into_iter().map(|(token, _)| token).collect::<std::collections::HashSet<_>>()
    };
    let (wide, narrow) = (kept(BORDER), kept(-BORDER));
    let extra = drawn.iter().find(|token| !wide.contains(token));
    let missing = narrow.iter().find(|token| !drawn.contains(token));
    match (extra, missing) {
        (None, None) => Ok(()),
        _ => Err(format!("token {extra:?} is kept, token {missing:?} is not; {} should be", narrow.len())),
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
    let (mut sum, mut magnitude) = (0.0, 0.0);
    for &logit in logits {
        let exponent = f64::from(logit) - f64::from(largest);
        sum += exponent.exp();
        magnitude += exponent.exp() * (4.0 + 2.0 * exponent.abs());
    }
    let close = check_close(&[found.sum], &[sum], &[magnitude], SUM_OPS)?;
    let token = row.scored.unwrap_or(found.token);
    let twin = score::logprob(logits, token);
    let allowed = bound(magnitude / sum + twin.abs(), SUM_OPS);
    match (found.logprob() - twin).abs() <= allowed {
        true => Ok(close.worst_share),
        false => Err(format!("token {token} scores {}, not {twin}, with a bound of {allowed:e}", found.logprob())),
    }
}

/// Ranks and entries are exact.
fn check_logprobs(
    row: &Row,
    token: TokenId,
    found: &Sampled,
    entries: &[[u32; 2]],
    logits: &[f32],
) -> Result<(), String> {
    let expected = if row.wants() == NO_LOGPROBS { 0 } else { score::rank(logits, token) };
    if found.rank != expected {
        return Err(format!("token {token} has rank {}, not {expected}", found.rank));
    }
    let expected: Vec<TokenId> = match entries.len() > MAX_DEVICE_LOGPROBS as usize {
        true => (0..logits.len() as TokenId).collect(),
        false => score::likeliest(logits, entries.len()),
    };
    for (at, (&[token, bits], &expected)) in entries.iter().zip(&expected).enumerate() {
        if token != expected || bits != logits[expected as usize].to_bits() {
            return Err(format!("entry {at} is token {token} with {}, not {expected}", f32::from_bits(bits)));
        }
    }
    Ok(())
}
