//! One step: who computes what, within one token budget.

use super::admission::Pause;
use super::plan::{DecodeRow, PrefillChunk, StepPlan, TableUpdate};
use super::scheduler::{Flight, FlightRow};
use super::sequence::{SeqState, Sequence};
use super::{SchedEvent, Scheduler};
use crate::base::{BLOCK_TOKENS, SeqId};
use crate::cache::BlockPool;

/// How the search for blocks of a decode row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// The row can run.
    Ready,
    /// Blocks come back when submissions under way retire; until then nobody may take them.
    Wait,
    /// The row itself was preempted.
    Gone,
}

impl Scheduler {
    /// Plans the next submission. False if there is nothing to submit now: idle, the in-flight window is full, or
    /// only results can bring progress. The plan is overwritten; its memory is reused.
    ///
    /// Running sequences come first, in order, then the waiting queue. A sequence that gets no tokens is skipped and
    /// holds nobody up, save where blocks are short: there the earlier one has the first claim.
    pub fn schedule(&mut self, plan: &mut StepPlan, events: &mut Vec<SchedEvent>) -> bool {
        plan.clear();
        if self.flights.len() >= self.config.max_in_flight {
            return false;
        }
        let mut budget = self.config.max_num_batched_tokens;
        let preemptions = self.totals.preemptions;
        let mut short = false;
        let mut at = 0;
        while let Some(&id) = self.running.get(at) {
            at += 1;
            let sequence = &self.sequences[&id];
            match sequence.state {
                SeqState::Prefill(_) => budget -= self.plan_chunk(id, plan, budget),
                SeqState::Decode(_) if budget > 0 && sequence.remaining() > 0 => {
                    match self.find_room(id, events) {
                        Room::Ready => {
                            self.plan_decode(id, plan);
                            budget -= 1;
                        }
                        Room::Wait => short = true,
                        // It was the tail of the list, so the loop ends here.
                        Room::Gone => {}
                    }
                }
                // All its tokens are under way, or the budget is used up.
                SeqState::Decode(_) => {}
                SeqState::Waiting | SeqState::Done(_) => unreachable!("{id} is in the running list"),
            }
        }
        // Who was just preempted would come straight back.
        let pause = if self.totals.preemptions > preemptions {
            if self.waiting.is_empty() { Pause::Empty } else { Pause::Short }
        } else {
            self.admit(plan, &mut budget, events)
        };
        if plan.is_empty() {
            // Liveness: with nothing under way, every block is free or held by a row that can go on.
            debug_assert!(!self.flights.is_empty() || self.sequences.is_empty(), "work is left, but nothing can move");
            self.checked();
            return false;
        }
        // A row that waits for blocks gets them soon and is not to sit out several steps.
        if plan.prefill.is_empty() && pause != Pause::Soon && !short {
            self.extend_steps(plan);
        }
        self.launch(plan);
        self.checked();
        true
    }

    /// Plans the next run of known tokens of `id`, at most `budget`, and says how many.
    pub(super) fn plan_chunk(&mut self, id: SeqId, plan: &mut StepPlan, budget: usize) -> usize {
        let sequence = self.sequences.get_mut(&id).expect("running sequences exist");
        let SeqState::Prefill(slot) = sequence.state else { unreachable!("{id} has nothing to prefill") };
        let known = sequence.tokens.len();
        let start = sequence.computed;
        let cap = match self.config.long_prefill_token_threshold {
            0 => usize::MAX,
            threshold => threshold,
        };
        let len = (known - start).min(cap).min(budget);
        if len == 0 {
            return 0;
        }
        let end = start + len;
        // A prompt that fills the context is only scored: there is no room to sample.
        let last = end == known && sequence.remaining() > 0;
        plan.prefill.push(PrefillChunk {
            seq: id,
            slot,
            start: start as u32,
            len: len as u32,
            last,
            score: sequence.score,
            next_token: sequence.tokens.get(end).copied(),
        });
        plan.prefill_tokens.extend_from_slice(&sequence.tokens[start..end]);
        sequence.computed = end;
        if end == known {
            sequence.state = SeqState::Decode(slot);
            sequence.in_flight += usize::from(last);
        }
        len
    }

    /// Sees to it that the next position of `id` has a block. Once a row waits none is free, so later rows and
    /// admissions of the step cannot overtake it.
    fn find_room(&mut self, id: SeqId, events: &mut Vec<SchedEvent>) -> Room {
        loop {
            let sequence = &self.sequences[&id];
            if sequence.computed < sequence.table.len() * BLOCK_TOKENS {
                return Room::Ready;
            }
            let counts = self.pool.counts();
            if counts.free > 0 {
                return Room::Ready;
            }
            if counts.pending > 0 {
                // Enough is on its way back; preempting somebody would bring nothing sooner.
                return Room::Wait;
            }
            if self.preempt_tail(events) == id {
                return Room::Gone;
            }
        }
    }

    fn plan_decode(&mut self, id: SeqId, plan: &mut StepPlan) {
        let sequence = self.sequences.get_mut(&id).expect("running sequences exist");
        let SeqState::Decode(slot) = sequence.state else { unreachable!("{id} does not decode") };
        plan.decode.push(DecodeRow { seq: id, slot, position: sequence.computed as u32 });
        grow_table(&mut self.pool, sequence, sequence.computed + 1, plan);
    }

    /// Lets the device run several steps by itself if every row's blocks can be had beforehand.
    fn extend_steps(&mut self, plan: &mut StepPlan) {
        let rows = || plan.decode.iter().map(|row| &self.sequences[&row.seq]);
        let longest = rows().map(Sequence::remaining).max().unwrap_or(1);
        let steps = longest.min(usize::from(self.step_limit));
        if steps <= 1 {
            return;
        }
        let end = |sequence: &Sequence| sequence.computed + steps.min(sequence.remaining());
        let missing: usize =
            rows().map(|sequence| end(sequence).div_ceil(BLOCK_TOKENS).saturating_sub(sequence.table.len())).sum();
        if missing > self.pool.free_count() {
            return;
        }
        plan.steps = steps as u16;
        for at in 0..plan.decode.len() {
            let sequence = self.sequences.get_mut(&plan.decode[at].seq).expect("planned sequences exist");
            grow_table(&mut self.pool, sequence, end(sequence), plan);
        }
    }

    /// Books the finished plan as a submission under way.
    fn launch(&mut self, plan: &mut StepPlan) {
        let epoch = self.last_epoch.next();
        self.last_epoch = epoch;
        plan.epoch = epoch;
        plan.closed_slots.append(&mut self.closed_slots);
        let mut rows = self.spare_rows.pop().unwrap_or_default();
        for chunk in &plan.prefill {
            let sequence = self.sequences.get_mut(&chunk.seq).expect("planned sequences exist");
            sequence.last_use = epoch;
            rows.push(FlightRow {
                seq: chunk.seq,
                incarnation: sequence.incarnation,
                start: chunk.start as usize,
                prefilled: chunk.len as usize,
                expected: usize::from(chunk.last),
                came: 0,
            });
        }
        for row in &plan.decode {
            let sequence = self.sequences.get_mut(&row.seq).expect("planned sequences exist");
            let expected = usize::from(plan.steps).min(sequence.remaining());
            sequence.last_use = epoch;
            sequence.computed += expected;
            sequence.in_flight += expected;
            self.totals.decode_tokens += expected as u64;
            rows.push(FlightRow {
                seq: row.seq,
                incarnation: sequence.incarnation,
                start: row.position as usize,
                prefilled: 0,
                expected,
                came: 0,
            });
        }
        self.flights.push_back(Flight { epoch, rows });
        self.totals.steps += u64::from(plan.steps);
        self.totals.prefill_tokens += plan.prefill_tokens.len() as u64;
    }
}

/// Appends blocks until `positions` have one each; they were counted before.
fn grow_table(pool: &mut BlockPool, sequence: &mut Sequence, positions: usize, plan: &mut StepPlan) {
    let slot = sequence.slot().expect("planned sequences have a slot");
    while sequence.table.len() * BLOCK_TOKENS < positions {
        let block = pool.allocate().expect("free blocks were counted");
        plan.table_updates.push(TableUpdate { slot, index: sequence.table.len() as u32, block });
        sequence.table.push(block);
    }
}
