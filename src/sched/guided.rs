//! Sequences whose tokens the caller guides: one token at a time, each after a word from the caller; and the room for
//! log-probabilities that a submission has.

use super::plan::{MaskRow, StepPlan, TableUpdate};
use super::queue::Urgency;
use super::sequence::{SeqState, Sequence};
use super::step::Room;
use super::{FinishReason, NewSequence, SchedEvent, Scheduler};
use crate::base::{SeqId, TokenId};
use crate::sampling::row::{NO_LOGPROBS, logprob_entries};

/// Who has the first claim on the room for log-probabilities, and on how many entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogprobClaim {
    by: Urgency,
    entries: u32,
}

impl Scheduler {
    /// The next token of a [guided](crate::sampling::SamplingRow::is_guided) sequence may be sampled: its mask is there. It stays
    /// good through preemption and loss of the device until that token comes. Others are left as they are.
    pub fn set_ready(&mut self, seq: SeqId) {
        if let Some(sequence) = self.sequences.get_mut(&seq)
            && !sequence.ready
        {
            sequence.ready = true;
            self.unready -= 1;
        }
        self.stuck = false;
        self.checked();
    }

    /// A guided sequence goes on with `tokens`, which need no sampling since the guide leaves no choice. They are computed together
    /// with the next sampled one. Ends the sequence where one of them does, and leaves out what follows.
    ///
    /// Call it only while none of its tokens is under way, that is before [`set_ready`](Self::set_ready); else, and for unknown
    /// ids, nothing happens.
    pub fn append(&mut self, seq: SeqId, tokens: &[TokenId], events: &mut Vec<SchedEvent>) {
        self.stuck = false;
        for &token in tokens {
            let Some(sequence) = self.sequences.get_mut(&seq) else { break };
            if sequence.in_flight > 0 || sequence.remaining() == 0 {
                break;
            }
            sequence.tokens.push(token);
            if let SeqState::Decode(slot) = sequence.state {
                // More than one token has no KV now.
                sequence.state = SeqState::Prefill(slot);
            }
            events.push(SchedEvent::Token { seq, token, logprob: None });
            let end = if sequence.stop_tokens.contains(&token) {
                FinishReason::Stop
            } else if sequence.tokens.len() >= sequence.limit {
                FinishReason::Length
            } else {
                continue;
            };
            self.end(seq, end, events);
            self.remove(seq);
        }
        self.checked();
    }

    /// Finds blocks for appended tokens, which nobody counted on at admission, as for decode rows.
    pub(super) fn make_room_for_appended(&mut self, seq: SeqId, events: &mut Vec<SchedEvent>) -> Room {
        self.slide(seq, self.sequence(seq).computed);
        while self.sequence(seq).lacks_blocks() {
            match self.find_room(seq, events) {
                Room::Ready => {
                    let block = self.take_block(events);
                    let sequence = self.sequence_mut(seq);
                    let slot = sequence.slot().expect("who lacks blocks has a slot");
                    // Kept until the next submission: this plan may come to nothing.
                    let update = TableUpdate { slot, index: sequence.table.len() as u32, block };
                    sequence.table.push(block);
                    self.grown.push(update);
                }
                room => return room,
            }
        }
        Room::Ready
    }

    /// Whether some sequence needs blocks for appended tokens.
    pub(super) fn lacks_blocks(&self) -> bool {
        self.guided > 0 && self.running.iter().any(|urgency| self.sequence(urgency.seq).lacks_blocks())
    }

    /// Books that the sequence's next token is being sampled, and asks for its mask if it is guided.
    pub(super) fn samples(&mut self, seq: SeqId, plan: &mut StepPlan) {
        let sequence = self.sequence_mut(seq);
        if !sequence.sampling.is_guided() {
            return;
        }
        let slot = sequence.slot().expect("who samples has a slot");
        if std::mem::replace(&mut sequence.ready, false) {
            self.unready += 1;
        }
        plan.masks.push(MaskRow { seq, slot });
    }

    /// Entries of log-probabilities that sampling its next token takes.
    pub(super) fn sample_entries(&self, sequence: &Sequence) -> u32 {
        logprob_entries(sequence.sampling.logprobs, self.capacity.vocab_size)
    }

    /// Entries of log-probabilities that each scored token of its prompt takes.
    pub(super) fn score_entries(&self, sequence: &Sequence) -> u32 {
        if sequence.score { logprob_entries(sequence.sampling.prompt_logprobs, self.capacity.vocab_size) } else { 0 }
    }

    /// Entries of log-probabilities that one token of its prompt and one sampled token take together.
    pub(super) fn entries_asked(new: &NewSequence, vocab_size: u32) -> u64 {
        let entries = |logprobs| u64::from(logprob_entries(logprobs, vocab_size));
        entries(new.sampling.logprobs) + if new.score { entries(new.sampling.prompt_logprobs) } else { 0 }
    }

    /// Whether the host has to do with each of its tokens, so that the device cannot run several steps by itself.
    pub(super) fn needs_host(sequence: &Sequence) -> bool {
        sequence.sampling.is_guided() || sequence.sampling.logprobs != NO_LOGPROBS
    }

    /// Begins a plan's account of log-probabilities.
    pub(super) fn open_logprob_room(&mut self) {
        self.logprob_room = self.capacity.logprob_entries;
        let sequences = &self.sequences;
        let waits = |seq| sequences.get(&seq).is_some_and(|sequence| matches!(sequence.state, SeqState::Prefill(_)));
        // Otherwise it ended, or lost its place.
        self.logprob_claim = self.logprob_claim.filter(|claim| waits(claim.by.seq));
    }

    /// Entries that a row may still take. Rows that decode are planned before prompts, and new ones join all the time: without
    /// the claim they could leave a prompt too little room for ever. A claim that this plan cannot meet any more, because of rows
    /// that are more urgent, holds nobody up.
    pub(super) fn logprob_room_for(&self, urgency: Urgency) -> u32 {
        match self.logprob_claim {
            Some(claim) if claim.by < urgency && claim.entries <= self.logprob_room => {
                self.logprob_room - claim.entries
            }
            _ => self.logprob_room,
        }
    }

    /// Of the next `len` known tokens of `sequence`, up to its last known one or not, how many this submission can take, given what
    /// sampling waits for and what room is left for log-probabilities. Books the room, and what it lacks for a single token.
    pub(super) fn fit_chunk(&mut self, seq: SeqId, len: usize) -> usize {
        let sequence = self.sequence(seq);
        let (by, per_score, per_sample) =
            (sequence.urgency, self.score_entries(sequence), self.sample_entries(sequence));
        let room = self.logprob_room_for(by);
        let samples = |len: usize| sequence.computed + len == sequence.tokens.len() && sequence.remaining() > 0;
        let entries = |len: usize| len as u32 * per_score + if samples(len) { per_sample } else { 0 };
        let mut fits = match room.checked_div(per_score) {
            Some(most) => len.min(most as usize),
            None => len,
        };
        if fits > 0 && samples(fits) && (!sequence.ready || entries(fits) > room) {
            fits -= 1;
        }
        let lacks_room = len > 0 && entries(1) > room && (sequence.ready || !samples(1));
        let claim = LogprobClaim { by, entries: entries(1) };
        self.logprob_room -= entries(fits);
        if fits > 0 {
            self.logprob_claim = self.logprob_claim.filter(|claim| claim.by != by);
        } else if lacks_room && self.logprob_claim.is_none_or(|other| by <= other.by) {
            self.logprob_claim = Some(claim);
        }
        fits
    }
}
