//! Results come back: tokens are appended, stops checked, full blocks published, blocks released.

use super::blocks::{block_name, hash_full_blocks, stored};
use super::scheduler::FlightRow;
use super::sequence::{SeqState, Sequence};
use super::{FinishReason, SchedEvent, Scheduler};
use crate::base::BLOCK_TOKENS;
use crate::cache::Medium;
use crate::runner::{SampleFault, SampledToken, StepResult, TokenScore};

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
        self.stuck = false;
        self.host.retire(self.retired);

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
            self.take_token(sampled, events);
        }
        let mut progress = !result.tokens.is_empty();
        for row in &flight.rows {
            progress |= self.settle(row, events);
        }
        self.watch(progress, events);
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
        let TokenScore { seq, position, logprob, rank, top } = *score;
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
            events.push(SchedEvent::Score { seq, position, logprob, rank, top });
        }
    }

    fn take_token(&mut self, sampled: &SampledToken, events: &mut Vec<SchedEvent>) {
        let SampledToken { seq, token, logprob, .. } = *sampled;
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        if matches!(sequence.state, SeqState::Done(_)) {
            return;
        }
        let token = match token {
            Ok(token) => token,
            Err(SampleFault::NotFinite) => return self.end(seq, FinishReason::Error, events),
            Err(SampleFault::NothingAllowed) => return self.end(seq, FinishReason::NothingAllowed, events),
        };
        sequence.in_flight -= 1;
        sequence.tokens.push(token);
        events.push(SchedEvent::Token { seq, token, logprob });
        if sequence.stop_tokens.contains(&token) {
            self.end(seq, FinishReason::Stop, events);
        } else if sequence.tokens.len() >= sequence.limit {
            self.end(seq, FinishReason::Length, events);
        }
    }

    /// After the tokens of a submission: publishes the blocks that `row` filled and looks for a missing end. Says whether
    /// the sequence is further along than ever, or over.
    fn settle(&mut self, row: &FlightRow, events: &mut Vec<SchedEvent>) -> bool {
        let Some(sequence) = self.sequences.get_mut(&row.seq) else { return true };
        let filled = row.start + if row.prefilled > 0 { row.prefilled } else { row.came };
        let progress = filled > sequence.furthest;
        sequence.furthest = sequence.furthest.max(filled);
        match sequence.state {
            // The KV that led to bad logits must not serve anybody else.
            SeqState::Done(FinishReason::Error | FinishReason::NothingAllowed) => return true,
            SeqState::Done(_) => {}
            _ if row.came < row.expected => {
                // The device stopped a row that the host would go on with; its other tokens will never come. A caller
                // sees the same end as for bad logits.
                self.end(row.seq, FinishReason::Error, events);
                return true;
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
        progress
    }

    fn publish(&mut self, row: &FlightRow, filled: usize) {
        let Self { pool, chain, sequences, kv_log, .. } = self;
        let Some(sequence) = sequences.get_mut(&row.seq) else { return };
        if row.incarnation != sequence.incarnation {
            return;
        }
        let full = filled.min(sequence.tokens.len()) / BLOCK_TOKENS;
        if full <= sequence.published {
            return;
        }
        hash_full_blocks(chain, sequence);
        for index in sequence.published.max(sequence.slid)..full {
            let name = block_name(sequence, index);
            if pool.publish(sequence.table[index], &name.key(), row.seq)
                && let Some(log) = kv_log
            {
                log.push(stored(&name, Medium::Gpu));
            }
        }
        sequence.published = full;
    }

    /// The watchdog. Preemption may make the same tokens be computed again and again, but never for long without somebody
    /// getting further; if it does, that is a defect, and one request ends so that the others go on.
    fn watch(&mut self, progress: bool, events: &mut Vec<SchedEvent>) {
        self.idle_results = if progress { 0 } else { self.idle_results + 1 };
        if self.idle_results >= self.config.watchdog_steps {
            self.idle_results = 0;
            if let Some(front) = self.running.first() {
                let seq = front.seq;
                self.end(seq, FinishReason::Stalled, events);
                self.remove(seq);
            }
        }
    }
}
