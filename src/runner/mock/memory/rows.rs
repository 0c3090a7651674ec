//! What the rows of a plan write, see and yield.

use super::{Halt, Memory, Run, bug};
use crate::base::{SeqId, SlotId, TokenId};
use crate::runner::SampleFault;
use crate::runner::mock::rules::report;
use crate::runner::mock::{Context, MockOptions, RunError, SampledToken, StepResult, TokenScore};
use crate::sampling::row::{NO_LOGPROBS, logprob_entries};
use crate::sched::plan::PrefillChunk;

impl Memory {
    pub(super) fn write_chunk(&mut self, chunk: &PrefillChunk, tokens: &[TokenId]) -> Run<()> {
        let PrefillChunk { seq, slot: id, start, .. } = *chunk;
        let (start, slot) = (start as usize, self.slot(id, seq)?);
        // A guided sequence goes on with tokens that were not sampled, after the one that was.
        let goes_on = slot.rules.sampling.is_guided() && slot.token == tokens.first().copied();
        if slot.token.is_some() && !goes_on || slot.halt.is_some() {
            return bug(format!("sequence {seq} prefills after it began to decode"));
        }
        if slot.filled.is_some_and(|filled| filled != start) {
            return bug(format!("sequence {seq} has KV up to {:?}, but prefills from {start}", slot.filled));
        }
        for (offset, token) in tokens.iter().enumerate() {
            if *token >= self.capacity.vocab_size {
                return bug(format!("token {token} is outside the vocabulary"));
            }
            self.write(id, seq, start + offset, *token)?;
        }
        let slot = self.slot_mut(id, seq)?;
        (slot.filled, slot.token) = (Some(start + tokens.len()), None);
        Ok(())
    }

    pub(super) fn read_chunk(
        &mut self,
        chunk: &PrefillChunk,
        tokens: &[TokenId],
        options: &MockOptions,
        result: &mut StepResult,
    ) -> Run<()> {
        let PrefillChunk { seq, slot, start, len, last, score, next_token } = *chunk;
        let context = self.read(slot, seq, start as usize, (start + len) as usize)?;
        if score {
            let following = tokens[1..].iter().copied().chain(next_token);
            let wants = self.slot(slot, seq)?.rules.sampling.prompt_logprobs;
            for (position, token) in (start + 1..).zip(following) {
                self.take_entries(wants, seq)?;
                let logprob = MockOptions::logprob(token);
                let report = report(token, logprob, wants, self.capacity.vocab_size, result).unwrap_or_default();
                result.scores.push(TokenScore { seq, position, logprob, rank: report.rank, top: report.top });
            }
        }
        if last { self.sample(slot, seq, context, options, result) } else { Ok(()) }
    }

    pub(super) fn write_decode(&mut self, seq: SeqId, id: SlotId, position: usize, step: u16) -> Run<()> {
        let slot = self.slot(id, seq)?;
        match slot.halt {
            Some(Halt::Limit) if step == 0 => return bug(format!("sequence {seq} is planned beyond its limit")),
            Some(_) => return Ok(()),
            None => {}
        }
        let (Some(token), Some(filled)) = (slot.token, slot.filled) else {
            return bug(format!("sequence {seq} decodes before its prompt is done"));
        };
        if step == 0 && position != filled {
            return bug(format!("sequence {seq} has KV up to {filled}, but decodes at {position}"));
        }
        self.write(id, seq, filled, token)?;
        self.slot_mut(id, seq)?.filled = Some(filled + 1);
        Ok(())
    }

    /// Samples the token after the `filled` positions of a slot and decides whether it goes on.
    pub(super) fn sample(
        &mut self,
        id: SlotId,
        seq: SeqId,
        context: Context,
        options: &MockOptions,
        result: &mut StepResult,
    ) -> Run<()> {
        let (start, vocab_size) = (self.start, self.capacity.vocab_size);
        let slot = self.slot_mut(id, seq)?;
        let index = slot.filled.unwrap_or(0);
        if index >= slot.limit {
            return bug(format!("sequence {seq} samples token {index}, its limit is {}", slot.limit));
        }
        let token = match options.next_token(context, &slot.rules.sampling) {
            Some(token) => slot.rules.apply(token, index, context, start),
            None => Ok(Err(SampleFault::NotFinite)),
        };
        let token = token.map_err(|why| RunError::Bug(format!("sequence {seq} {why}")))?;
        let sampling = slot.rules.sampling;
        let stops = &sampling.stops[..sampling.stop_count as usize];
        slot.token = token.ok();
        slot.halt = match token {
            Err(_) => Some(Halt::NoToken),
            Ok(token) if stops.contains(&token) => Some(Halt::Token),
            Ok(_) if index + 1 == slot.limit => Some(Halt::Limit),
            Ok(_) => None,
        };
        self.take_entries(sampling.logprobs, seq)?;
        let logprob = token
            .ok()
            .and_then(|token| report(token, MockOptions::logprob(token), sampling.logprobs, vocab_size, result));
        result.tokens.push(SampledToken { seq, slot: id, token, logprob });
        Ok(())
    }

    /// Books the entries of log-probabilities of one row.
    fn take_entries(&mut self, wants: u32, seq: SeqId) -> Run<()> {
        if wants != NO_LOGPROBS {
            self.entries += logprob_entries(wants, self.capacity.vocab_size);
        }
        match self.entries <= self.capacity.logprob_entries {
            true => Ok(()),
            false => bug(format!("sequence {seq} reports log-probabilities that there is no room for")),
        }
    }
}
