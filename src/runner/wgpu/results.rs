//! From the words that the device reports to tokens, scores and log-probabilities.

use crate::kernels::sample::Sampled;
use crate::layout::inputs::{BAD_LOGITS, ENTRIES_PER_SAMPLE, NONE, NOTHING_ALLOWED, Report, SampleOwner};
use crate::runner::{SampleFault, SampledToken, StepResult, TokenLogprob, TokenScore, TopRange, TopToken};

/// Sorts what the device reported in `bytes` into `result`: for each of `steps` steps `stride` samples, the first of which
/// belong to `owners`, and behind a single step its entries of log-probabilities.
pub(super) fn deliver(bytes: &[u8], steps: usize, stride: usize, owners: &[SampleOwner], result: &mut StepResult) {
    let words: &[u32] = bytemuck::cast_slice(bytes);
    let (samples, entries) = words.split_at(steps * stride * 2 * ENTRIES_PER_SAMPLE);
    let samples: &[Sampled] = bytemuck::cast_slice(samples);
    let entries: &[[u32; 2]] = bytemuck::cast_slice(entries);
    for step in samples.chunks(stride) {
        for (sampled, owner) in step.iter().zip(owners) {
            let SampleOwner { seq, slot, scored, report } = *owner;
            if sampled.token == NONE {
                continue;
            }
            let fault = match sampled.token {
                BAD_LOGITS => Some(SampleFault::NotFinite),
                NOTHING_ALLOWED => Some(SampleFault::NothingAllowed),
                _ => None,
            };
            let report = report.filter(|_| fault.is_none());
            let logprob = report.map(|report| logprob(sampled, report, entries, result));
            match (scored, fault) {
                (Some(position), _) => {
                    let TokenLogprob { rank, top, .. } = logprob.unwrap_or_default();
                    let logprob = if fault.is_some() { f64::NAN } else { sampled.logprob() };
                    result.scores.push(TokenScore { seq, position, logprob, rank, top });
                }
                (None, Some(fault)) => result.tokens.push(SampledToken { seq, slot, token: Err(fault), logprob: None }),
                (None, None) => result.tokens.push(SampledToken { seq, slot, token: Ok(sampled.token), logprob }),
            }
        }
    }
}

/// The log-probability of a sample, and the likeliest tokens of its row, which join those of `result`.
fn logprob(sampled: &Sampled, report: Report, entries: &[[u32; 2]], result: &mut StepResult) -> TokenLogprob {
    let Report { first, count, wanted, all } = report;
    let first_top = result.top.len();
    let entries = &entries[first as usize..][..count as usize];
    result.top.extend(entries.iter().map(|&[token, logit]| {
        // Finite, whatever the logits: the lowest f32 stands for everything below it.
        let logprob = sampled.logprob_of(f32::from_bits(logit)).max(f64::from(f32::MIN)) as f32;
        TopToken { token, logprob }
    }));
    if all {
        // In the order of their ids. The logits decide: log-probabilities in f32 may make neighbours equal.
        let logit = |token: u32| f32::from_bits(entries[token as usize][1]);
        let order = |a: &TopToken, b: &TopToken| {
            logit(b.token).partial_cmp(&logit(a.token)).unwrap_or(std::cmp::Ordering::Equal).then(a.token.cmp(&b.token))
        };
        result.top[first_top..].sort_unstable_by(order);
        result.top.truncate(first_top + wanted as usize);
    }
    let top = TopRange { first: first_top as u32, count: wanted };
    TokenLogprob { logprob: sampled.logprob(), rank: sampled.rank, top }
}
