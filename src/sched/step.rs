//! One step: who computes what, within one token budget.

use super::admission::{Partial, Stop};
use super::plan::{DecodeRow, PrefillChunk, StepPlan};
use super::scheduler::{Flight, FlightRow};
use super::sequence::{SeqState, Sequence};
use super::{Pause, Policy, PreemptReason, SchedEvent, Scheduler};
use crate::base::{BLOCK_TOKENS, SeqId, ceil_div};

/// How the search for a block of a decode row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// The row can run.
    Ready,
    /// Blocks come back when submissions under way retire; until then nobody may take them.
    Soon,
    /// Everybody more urgent has to get further first. It keeps what it has.
    Later,
}

impl Scheduler {
    /// Plans the next submission. False if there is nothing to submit now: idle, paused, the in-flight window is full, or
    /// only results can bring progress. The plan is overwritten; its memory is reused.
    ///
    /// Rows of running sequences come first, by urgency: one token of each that decodes, then the prompts under way, then
    /// the waiting queue. A sequence that gets no tokens is skipped and holds nobody up, save where blocks are short:
    /// there the more urgent one has the first claim.
    pub fn schedule(&mut self, plan: &mut StepPlan, events: &mut Vec<SchedEvent>) -> bool {
        plan.clear();
        // The last plan has been submitted, and what it loads has left the host.
        for host in self.loaded.drain(..) {
            self.host.unpin(host);
        }
        if self.flights.len() >= self.config.max_in_flight || self.pause == Pause::All {
            return false;
        }
        let split = self.config.policy == Policy::PhaseSplit;
        let preemptions = self.totals.preemptions;
        self.open_logprob_room();
        let mut budget = self.config.max_num_batched_tokens;
        let mut short = false;
        if !split || self.owed || self.lacks_blocks() {
            short = self.plan_decodes(plan, &mut budget, events);
        }
        if self.config.chunked_prefill {
            budget = budget.min(self.prompt_limit);
        }
        // With split phases, who waited for a block to decode with comes before the prompts, once.
        let decodes_alone = split && (short || !plan.is_empty());
        let mut partial = match decodes_alone {
            true => Partial::default(),
            false => self.plan_prompts(plan, &mut budget, events),
        };
        // Who was just preempted would come straight back, and who waits for a block has the first claim.
        let stop = if decodes_alone || short || self.totals.preemptions > preemptions {
            if self.waiting.is_empty() { Stop::Empty } else { Stop::Short }
        } else {
            self.admit(plan, &mut budget, &mut partial, events)
        };
        if split && plan.is_empty() && !decodes_alone {
            short = self.plan_decodes(plan, &mut budget, events);
        }
        self.owed = split && short;
        if plan.is_empty() {
            // Liveness: with nothing under way, every block is free or held by a row that can go on.
            self.stuck = self.flights.is_empty() && self.unready > 0;
            debug_assert!(!self.flights.is_empty() || self.awaits_caller(), "work is left, but nothing can move");
            self.checked();
            return false;
        }
        // A row that waits for blocks gets them soon and is not to sit out several steps.
        if plan.prefill.is_empty() && stop != Stop::Soon && !short {
            self.extend_steps(plan, events);
        }
        self.launch(plan, events);
        self.checked();
        true
    }

    /// One row for each sequence that decodes, and blocks for appended tokens. True if some row waits for blocks that are on their way back.
    fn plan_decodes(&mut self, plan: &mut StepPlan, budget: &mut usize, events: &mut Vec<SchedEvent>) -> bool {
        let mut short = false;
        let mut at = 0;
        while let Some(&urgency) = self.running.get(at) {
            at += 1;
            let sequence = self.sequence(urgency.seq);
            let SeqState::Decode(slot) = sequence.state else {
                short |= sequence.lacks_blocks() && self.make_room_for_appended(urgency.seq, events) == Room::Soon;
                continue;
            };
            // All its tokens may be under way.
            if *budget == 0 || sequence.remaining() == 0 {
                continue;
            }
            let entries = self.sample_entries(sequence);
            if !sequence.ready || entries > self.logprob_room_for(urgency) {
                continue;
            }
            let position = sequence.computed;
            if position == sequence.table.len() * BLOCK_TOKENS {
                self.slide(urgency.seq, position);
                match self.find_room(urgency.seq, events) {
                    Room::Ready => self.grow_table(urgency.seq, position + 1, plan, events),
                    Room::Soon => {
                        short = true;
                        continue;
                    }
                    Room::Later => continue,
                }
            }
            plan.decode.push(DecodeRow { seq: urgency.seq, slot, position: position as u32 });
            self.logprob_room -= entries;
            *budget -= 1;
        }
        short
    }

    /// The next chunks of prompts under way, and how many of them are still not done then. They share the budget evenly,
    /// and what one does not need goes to the next.
    fn plan_prompts(&mut self, plan: &mut StepPlan, budget: &mut usize, events: &mut Vec<SchedEvent>) -> Partial {
        let mut prefilling = std::mem::take(&mut self.scratch.prefilling);
        prefilling.clear();
        let running = self.running.iter().map(|urgency| urgency.seq);
        prefilling.extend(running.filter(|seq| matches!(self.sequence(*seq).state, SeqState::Prefill(_))));
        // Those who may still join get their share of the step.
        let joining = match self.pause {
            Pause::None => {
                let places = self.config.max_num_partial_prefills.saturating_sub(prefilling.len());
                places.min(self.waiting.len()).min(self.free_slots.len())
            }
            _ => 0,
        };
        let mut partial = Partial::default();
        for (index, seq) in prefilling.iter().enumerate() {
            let share = ceil_div(*budget, prefilling.len() - index + joining);
            *budget -= self.plan_chunk(*seq, plan, share, events);
            let sequence = self.sequence(*seq);
            if matches!(sequence.state, SeqState::Prefill(_)) {
                partial.all += 1;
                partial.long += usize::from(self.is_long(sequence.tokens.len()));
            }
        }
        self.scratch.prefilling = prefilling;
        partial
    }

    /// Plans the next run of known tokens of `seq`, at most `budget`, and says how many.
    pub(super) fn plan_chunk(
        &mut self,
        seq: SeqId,
        plan: &mut StepPlan,
        budget: usize,
        events: &mut Vec<SchedEvent>,
    ) -> usize {
        let limit = self.chunk_limit().min(budget);
        let sequence = self.sequence(seq);
        let (known, start) = (sequence.tokens.len(), sequence.computed);
        let has_blocks = sequence.table.len() * BLOCK_TOKENS - start;
        let len = self.fit_chunk(seq, (known - start).min(limit).min(has_blocks));
        if len == 0 {
            return 0;
        }
        self.slide(seq, start);
        self.make_writable(seq, start, plan, events);
        let sequence = self.sequence_mut(seq);
        let SeqState::Prefill(slot) = sequence.state else { unreachable!("{seq} has nothing to prefill") };
        let end = start + len;
        // A prompt that fills the context is only scored: there is no room to sample.
        let last = end == known && sequence.remaining() > 0;
        plan.prefill.push(PrefillChunk {
            seq,
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

    /// Sees to it that a block is free for the next position of `seq`, if need be by preempting the least urgent. Once a
    /// row waits none is free, so later rows and admissions of the step cannot overtake it.
    pub(super) fn find_room(&mut self, seq: SeqId, events: &mut Vec<SchedEvent>) -> Room {
        loop {
            let counts = self.pool.counts();
            if counts.free > 0 {
                return Room::Ready;
            }
            if counts.pending > 0 {
                // Enough is on its way back; preempting somebody would bring nothing sooner.
                return Room::Soon;
            }
            let tail = self.running.last().expect("the row that asks is running itself").seq;
            if tail == seq {
                return Room::Later;
            }
            self.preempt(tail, PreemptReason::NoBlock { wanted_by: seq }, events);
        }
    }

    /// Lets the device run several steps by itself if every row's blocks can be had beforehand.
    fn extend_steps(&mut self, plan: &mut StepPlan, events: &mut Vec<SchedEvent>) {
        let rows = || plan.decode.iter().map(|row| self.sequence(row.seq));
        if rows().any(Self::needs_host) {
            return;
        }
        let longest = rows().map(Sequence::remaining).max().unwrap_or(1);
        let steps = longest.min(usize::from(self.step_limit));
        if steps <= 1 {
            return;
        }
        let end = |sequence: &Sequence| sequence.computed + steps.min(sequence.remaining());
        let missing: usize =
            rows().map(|sequence| ceil_div(end(sequence), BLOCK_TOKENS).saturating_sub(sequence.table.len())).sum();
        if missing > self.pool.free_count() {
            return;
        }
        plan.steps = steps as u16;
        for at in 0..plan.decode.len() {
            let seq = plan.decode[at].seq;
            let end = end(self.sequence(seq));
            self.grow_table(seq, end, plan, events);
        }
    }

    /// Books the finished plan as a submission under way.
    fn launch(&mut self, plan: &mut StepPlan, events: &mut Vec<SchedEvent>) {
        let epoch = self.last_epoch.next();
        self.last_epoch = epoch;
        plan.epoch = epoch;
        plan.closed_slots.append(&mut self.closed_slots);
        plan.saves.append(&mut self.saves);
        plan.table_updates.append(&mut self.grown);
        let mut rows = self.spare_rows.pop().unwrap_or_default();
        for at in 0..plan.prefill.len() {
            let chunk = plan.prefill[at];
            if chunk.last {
                self.samples(chunk.seq, plan);
            }
            let sequence = self.sequence_mut(chunk.seq);
            sequence.last_use = epoch;
            let prompt_done = sequence.computed >= sequence.prompt_len;
            rows.push(FlightRow {
                seq: chunk.seq,
                incarnation: sequence.incarnation,
                start: chunk.start as usize,
                prefilled: chunk.len as usize,
                expected: usize::from(chunk.last),
                came: 0,
            });
            if prompt_done {
                self.unpark_followers(chunk.seq);
            }
            events.push(SchedEvent::Chunk { seq: chunk.seq, start: chunk.start, len: chunk.len });
        }
        let steps = plan.steps;
        for at in 0..plan.decode.len() {
            let row = plan.decode[at];
            self.samples(row.seq, plan);
            let sequence = self.sequence_mut(row.seq);
            let expected = usize::from(steps).min(sequence.remaining());
            sequence.last_use = epoch;
            sequence.computed += expected;
            sequence.in_flight += expected;
            rows.push(FlightRow {
                seq: row.seq,
                incarnation: sequence.incarnation,
                start: row.position as usize,
                prefilled: 0,
                expected,
                came: 0,
            });
            self.totals.decode_tokens += expected as u64;
            events.push(SchedEvent::Decode { seq: row.seq, position: row.position, steps });
        }
        self.flights.push_back(Flight { epoch, rows });
        self.totals.steps += u64::from(steps);
        self.totals.prefill_tokens += plan.prefill_tokens.len() as u64;
    }
}
