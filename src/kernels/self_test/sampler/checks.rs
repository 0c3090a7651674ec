//! What the twins say of the sampler's results.

use super::super::rig::Rig;
use super::super::{Found, Outcome};
use super::{Case, Outputs, Row, run};
use crate::base::TokenId;
use crate::kernels::sample::{Sampled, sort_key};
use crate::layout::inputs::{BAD_LOGITS, NONE, NOTHING_ALLOWED, SeqState};
use crate::reference::tolerance::{bound, check_close};
use crate::reference::{advance, sample, score};
use crate::sampling::SamplingRow;
use crate::sampling::row::{MAX_DEVICE_LOGPROBS, NO_LOGPROBS};

/// Roundings between logits and a sum over a vocabulary: a lane's share of a block, the lanes, the blocks.
const SUM_OPS: usize = 256;
/// Shares of probability that so many roundings may move a filter's border by.
const BORDER: f32 = 2e-5;

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
