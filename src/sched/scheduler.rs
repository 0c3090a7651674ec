//! The scheduler's state and its small public methods. The large ones have files of their own: `admission` (add and
//! admit), `step` (schedule), `preemption`, `commit`.

use super::sequence::{SeqState, Sequence};
use super::{FinishReason, SchedulerConfig};
use crate::base::{BlockId, Epoch, SeqId, SlotId};
use crate::cache::{BlockPool, HashChain};
use crate::error::Result;
use crate::runner::Capacity;
use std::collections::{HashMap, VecDeque};

/// Plans steps and digests their results. See the [module](super).
#[derive(Debug)]
pub struct Scheduler {
    pub(super) config: SchedulerConfig,
    pub(super) capacity: Capacity,
    pub(super) pool: BlockPool,
    pub(super) chain: HashChain,
    pub(super) sequences: HashMap<SeqId, Sequence>,
    /// First come first served. Preempted sequences return to the front.
    pub(super) waiting: VecDeque<SeqId>,
    /// By admission; the tail is preempted first.
    pub(super) running: Vec<SeqId>,
    pub(super) free_slots: Vec<SlotId>,
    /// Slots whose owner left since the last plan.
    pub(super) closed_slots: Vec<SlotId>,
    pub(super) flights: VecDeque<Flight>,
    /// Emptied row lists, kept for their memory.
    pub(super) spare_rows: Vec<Vec<FlightRow>>,
    /// Decode steps of a submission that the caller allows just now; at most `config.max_steps`.
    pub(super) step_limit: u16,
    pub(super) last_epoch: Epoch,
    pub(super) retired: Epoch,
    pub(super) next_seq: u64,
    pub(super) totals: Totals,
    /// Scratch of the admission.
    pub(super) hits: Vec<BlockId>,
}

/// A submission under way.
#[derive(Debug)]
pub(super) struct Flight {
    pub epoch: Epoch,
    pub rows: Vec<FlightRow>,
}

/// What a submission does for one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlightRow {
    pub seq: SeqId,
    /// [`Sequence::incarnation`] at that time.
    pub incarnation: u32,
    /// Tokens with KV when the row starts.
    pub start: usize,
    /// Prompt tokens computed; 0 marks a decode row, which computes as many as it samples.
    pub prefilled: usize,
    /// Tokens it samples unless it stops early.
    pub expected: usize,
    /// Tokens that came; counted in commit.
    pub came: usize,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    pub preemptions: u64,
    pub steps: u64,
    pub prefill_tokens: u64,
    pub decode_tokens: u64,
}

/// Where the scheduler stands, for metrics and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Sequences without a slot.
    pub waiting: usize,
    /// Sequences with a slot.
    pub running: usize,
    /// Submissions under way.
    pub in_flight: usize,
    /// Blocks that can be handed out now, cached or not.
    pub blocks_free: usize,
    /// Blocks in some table, or released while a submission under way may still touch them.
    pub blocks_used: usize,
    /// All blocks.
    pub blocks_total: usize,
    /// Blocks that can be found by their content.
    pub blocks_cached: usize,
    /// Tokens looked up in the prefix cache since the start.
    pub prefix_queries: u64,
    /// Tokens found there.
    pub prefix_hits: u64,
    /// Times that a sequence lost its KV.
    pub preemptions: u64,
    /// Steps submitted; a submission of n steps counts n.
    pub steps: u64,
    /// Known tokens submitted.
    pub prefill_tokens: u64,
    /// Tokens that decode rows were submitted for.
    pub decode_tokens: u64,
}

impl Scheduler {
    /// An idle scheduler for a runner of this capacity.
    ///
    /// # Errors
    /// Contradictions between the options, or between them and the runner, with the reason.
    pub fn new(config: SchedulerConfig, capacity: Capacity) -> Result<Self> {
        config.validate(&capacity)?;
        let mut scheduler = Self {
            pool: BlockPool::new(capacity.block_count as usize),
            chain: HashChain::new(HashChain::DEFAULT_SEED),
            sequences: HashMap::new(),
            waiting: VecDeque::new(),
            running: Vec::with_capacity(config.max_num_seqs),
            free_slots: Vec::with_capacity(config.max_num_seqs),
            closed_slots: Vec::with_capacity(config.max_num_seqs),
            flights: VecDeque::with_capacity(config.max_in_flight),
            spare_rows: Vec::with_capacity(config.max_in_flight),
            step_limit: config.max_steps,
            last_epoch: Epoch(0),
            retired: Epoch(0),
            next_seq: 0,
            totals: Totals::default(),
            hits: Vec::new(),
            config,
            capacity,
        };
        scheduler.free_all_slots();
        Ok(scheduler)
    }

    /// The same scheduler with another seed for block hashes ([`HashChain`]); set it before the first sequence.
    pub fn with_hash_seed(mut self, seed: &str) -> Self {
        self.chain = HashChain::new(seed);
        self
    }

    /// Limits the decode steps of later submissions, as the time that a step takes makes wise: a submission that runs
    /// long keeps new requests waiting. Clamped to 1 and the configured most.
    pub fn set_step_limit(&mut self, steps: u16) {
        self.step_limit = steps.clamp(1, self.config.max_steps);
    }

    /// The host ends a sequence: a stop text, a cancel, a dropped stream. Its blocks return once the submissions that
    /// use them retired; results that still come are dropped; there is no event. Unknown ids are fine.
    pub fn finish(&mut self, seq: SeqId) {
        self.remove(seq);
        self.checked();
    }

    /// After the loss of a device: everything that ran waits again, in order and before what already waited. Tokens
    /// that the host has seen survive; submissions under way, KV and prefix cache are gone.
    pub fn requeue_all(&mut self) {
        for id in self.running.drain(..).rev() {
            self.waiting.push_front(id);
        }
        for sequence in self.sequences.values_mut() {
            sequence.state = SeqState::Waiting;
            sequence.table.clear();
            (sequence.computed, sequence.in_flight, sequence.published) = (0, 0, 0);
            sequence.incarnation += 1;
        }
        self.flights.clear();
        self.retired = self.last_epoch;
        self.pool = BlockPool::new(self.pool.block_count());
        self.pool.retire(self.retired);
        self.closed_slots.clear();
        self.free_all_slots();
        self.checked();
    }

    /// Whether a sequence is unfinished or a submission is under way.
    pub fn has_work(&self) -> bool {
        !self.sequences.is_empty() || !self.flights.is_empty()
    }

    /// Submissions under way.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Counts for metrics.
    pub fn stats(&self) -> SchedulerStats {
        let blocks = self.pool.counts();
        SchedulerStats {
            waiting: self.waiting.len(),
            running: self.running.len(),
            in_flight: self.flights.len(),
            blocks_free: blocks.free,
            blocks_used: blocks.held + blocks.pending,
            blocks_total: self.pool.block_count(),
            blocks_cached: self.pool.published_count(),
            prefix_queries: self.totals.prefix_queries,
            prefix_hits: self.totals.prefix_hits,
            preemptions: self.totals.preemptions,
            steps: self.totals.steps,
            prefill_tokens: self.totals.prefill_tokens,
            decode_tokens: self.totals.decode_tokens,
        }
    }

    /// The call that a sequence belongs to, while it is not finished.
    pub fn request_of(&self, seq: SeqId) -> Option<crate::base::RequestId> {
        self.sequences.get(&seq).map(|sequence| sequence.request)
    }

    /// Takes a sequence out of everything.
    pub(super) fn remove(&mut self, seq: SeqId) {
        let Some(mut sequence) = self.sequences.remove(&seq) else { return };
        match sequence.slot() {
            Some(slot) => {
                self.running.retain(|id| *id != seq);
                self.close_slot(slot);
            }
            None => self.waiting.retain(|id| *id != seq),
        }
        release_table(&mut self.pool, &mut sequence);
    }

    /// Gives the slot back. The next plan tells the runner, unless it has a new owner by then.
    pub(super) fn close_slot(&mut self, slot: SlotId) {
        self.free_slots.push(slot);
        self.closed_slots.push(slot);
    }

    fn free_all_slots(&mut self) {
        self.free_slots.clear();
        // Taken from the back: slot 0 first.
        self.free_slots.extend((0..self.config.max_num_seqs as u32).rev().map(SlotId));
    }

    pub(super) fn checked(&self) {
        #[cfg(test)]
        self.check();
    }
}

/// Releases all blocks from the back, so that the front of the prefix survives longest in the cache.
pub(super) fn release_table(pool: &mut BlockPool, sequence: &mut Sequence) {
    for block in sequence.table.drain(..).rev() {
        pool.release(block, sequence.last_use);
    }
}

impl Sequence {
    /// Marks the end; the commit under way removes the sequence.
    pub(super) fn end(&mut self, reason: FinishReason) {
        self.state = SeqState::Done(reason);
    }
}
