//! Results come back: tokens are appended, stops checked, full blocks published, blocks released.

use super::admission::{block_key, hash_full_blocks};
use super::scheduler::FlightRow;
use super::sequence::{SeqState, Sequence};
use super::{FinishReason, SchedEvent, Scheduler};
use crate::base::{BLOCK_TOKENS, SeqId, TokenId};
use crate::runner::{StepResult, TokenScore};

impl Scheduler {
    /// Takes the result of the oldest submission. Results of sequences that ended are dropped; so is a result from
    /// before [`Scheduler::requeue_all`].
    ///
    /// # Panics
    /// If results come out of order, which is a bug of the runner.
    pub fn commit(&mut self, result: &StepResult, events: &mut Vec<SchedEvent>) {
        if result.epoch <= self.retired {
            return;
        }
        let mut flight = self.flights.pop_front().expect("a result needs a submission under way");
        assert_eq!(flight.epoch, result.epoch, "results must come in the order of submission");
        self.retired = flight.epoch;

        for score in &result.scores {
            self.take_score(score, events);
        }
        // A row's tokens come step by step in row order; the cursor spares the search from the start each time.
        let mut cursor = 0;
        for sampled in &result.tokens {
            let rows = flight.rows.len();
            let Some(at) =
                (0..rows).map(|offset| (cursor + offset) % rows).find(|at| flight.rows[*at].seq == sampled.seq)
            else {
                continue;
            };
            cursor = at + 1;
            flight.rows[at].came += 1;
            self.take_token(sampled.seq, sampled.token, events);
        }
        for row in &flight.rows {
            self.settle(row, events);
        }
        // Names come before releases: what an ended sequence computed stays in the cache.
        for row in &flight.rows {
            if let Some(Sequence { state: SeqState::Done(_), .. }) = self.sequences.get(&row.seq) {
                self.remove(row.seq);
            }
        }
        self.pool.retire(self.retired);
        flight.rows.clear();
        self.spare_rows.push(flight.rows);
        self.checked();
    }

    fn take_score(&mut self, score: &TokenScore, events: &mut Vec<SchedEvent>) {
        let TokenScore { seq, position, logprob } = *score;
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        if matches!(sequence.state, SeqState::Done(_)) {
            return;
        }
        if !logprob.is_finite() {
            return self.end(seq, FinishReason::Error, events);
        }
        // A prompt that is computed again after a preemption is scored again.
        let at = position as usize;
        if at >= sequence.scored && at < sequence.prompt_len {
            sequence.scored = at + 1;
            events.push(SchedEvent::Score { seq, position, logprob });
        }
    }

    fn take_token(&mut self, seq: SeqId, token: Option<TokenId>, events: &mut Vec<SchedEvent>) {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        if matches!(sequence.state, SeqState::Done(_)) {
            return;
        }
        let Some(token) = token else { return self.end(seq, FinishReason::Error, events) };
        sequence.in_flight -= 1;
        sequence.tokens.push(token);
        events.push(SchedEvent::Token { seq, token });
        if sequence.stop_tokens.contains(&token) {
            self.end(seq, FinishReason::Stop, events);
        } else if sequence.tokens.len() >= sequence.limit {
            self.end(seq, FinishReason::Length, events);
        }
    }

    /// After the tokens of a submission: publishes the blocks that `row` filled and looks for a missing end.
    fn settle(&mut self, row: &FlightRow, events: &mut Vec<SchedEvent>) {
        let Some(sequence) = self.sequences.get_mut(&row.seq) else { return };
        let filled = row.start + if row.prefilled > 0 { row.prefilled } else { row.came };
        match sequence.state {
            // The KV that led to bad logits must not serve anybody else.
            SeqState::Done(FinishReason::Error) => return,
            SeqState::Done(_) => {}
            _ if row.came < row.expected => {
                // The device stopped a row that the host would go on with; its other tokens will never come. A caller
                // sees the same end as for bad logits.
                return self.end(row.seq, FinishReason::Error, events);
            }
            // A prompt that is only scored ends when its last chunk has run.
            _ if sequence.limit == sequence.tokens.len() && filled == sequence.limit => {
                self.end(row.seq, FinishReason::Length, events);
            }
            _ => {}
        }
        if self.config.prefix_cache {
            self.publish(row, filled);
        }
    }

    fn publish(&mut self, row: &FlightRow, filled: usize) {
        let Some(sequence) = self.sequences.get_mut(&row.seq) else { return };
        if row.incarnation != sequence.incarnation {
            return;
        }
        let full = filled.min(sequence.tokens.len()) / BLOCK_TOKENS;
        if full > sequence.published {
            hash_full_blocks(&mut self.chain, sequence);
            for index in sequence.published..full {
                self.pool.publish(sequence.table[index], &block_key(sequence, index), row.seq);
            }
            sequence.published = full;
        }
    }

    fn end(&mut self, seq: SeqId, reason: FinishReason, events: &mut Vec<SchedEvent>) {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        if reason == FinishReason::Error {
            for hash in &sequence.hashes {
                self.pool.withdraw(hash, seq);
            }
        }
        let slot = sequence.slot();
        sequence.end(reason);
        match slot {
            Some(slot) => {
                self.running.retain(|id| *id != seq);
                self.close_slot(slot);
            }
            None => self.waiting.retain(|id| *id != seq),
        }
        events.push(SchedEvent::Finished { seq, reason });
    }
}
