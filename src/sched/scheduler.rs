//! The scheduler's state and its small public methods. The large ones have files of their own: `admission` (add and
//! admit), `step` (schedule), `blocks`, `preemption`, `commit`, `control` (pause, reset, device loss).

use super::event::SchedEvent;
use super::guided::LogprobClaim;
use super::plan::{BlockSave, TableUpdate};
use super::queue::{Urgency, WaitingQueue};
use super::sequence::{Awaits, SeqState, Sequence};
use super::stats::Totals;
use super::{Pause, SchedulerConfig};
use crate::base::{BlockId, Epoch, HostBlockId, RequestId, SeqId, SlotId};
use crate::cache::{BlockPool, HashChain, HostStore, KvEvent};
use crate::error::Result;
use crate::runner::{Capacity, Costs};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Plans steps and digests their results. See the [module](super).
#[derive(Debug)]
pub struct Scheduler {
    pub(super) config: SchedulerConfig,
    pub(super) capacity: Capacity,
    pub(super) pool: BlockPool,
    pub(super) host: HostStore,
    pub(super) chain: HashChain,
    pub(super) sequences: FxHashMap<SeqId, Sequence>,
    pub(super) waiting: WaitingQueue,
    /// Those that wait for the prompt of the key.
    pub(super) followers: FxHashMap<SeqId, Vec<SeqId>>,
    /// Sequences in state `Parked`.
    pub(super) parked: usize,
    /// By urgency: rows are planned from the head, the tail is preempted first.
    pub(super) running: Vec<Urgency>,
    pub(super) free_slots: Vec<SlotId>,
    /// Slots whose owner left since the last plan.
    pub(super) closed_slots: Vec<SlotId>,
    /// Saves for the next plan. They outlive a call that plans nothing.
    pub(super) saves: Vec<BlockSave>,
    /// Host blocks that the last plan loaded from; their pins end when the next one is made.
    pub(super) loaded: Vec<HostBlockId>,
    pub(super) flights: VecDeque<Flight>,
    /// Emptied row lists, kept for their memory.
    pub(super) spare_rows: Vec<Vec<FlightRow>>,
    /// Decode steps of a submission that the caller allows just now; at most `config.max_steps`.
    pub(super) step_limit: u16,
    /// Prompt tokens of a step that the caller allows just now; at least 1.
    pub(super) prompt_limit: usize,
    pub(super) costs: Costs,
    pub(super) pause: Pause,
    pub(super) last_epoch: Epoch,
    pub(super) retired: Epoch,
    pub(super) next_seq: u64,
    /// With split phases: somebody waits for a block to decode with.
    pub(super) owed: bool,
    /// Guided sequences.
    pub(super) guided: usize,
    /// Blocks for appended tokens that no plan has told of yet.
    pub(super) grown: Vec<TableUpdate>,
    /// Guided sequences whose next token has no mask yet.
    pub(super) unready: usize,
    /// Nothing could be planned, nothing is under way, and some mask is missing.
    pub(super) stuck: bool,
    /// Entries of log-probabilities that the plan being made may still ask for.
    pub(super) logprob_room: u32,
    /// The most urgent prompt that went without such room, until it gets it.
    pub(super) logprob_claim: Option<LogprobClaim>,
    /// Results in a row that brought nothing new.
    pub(super) idle_results: u32,
    pub(super) totals: Totals,
    pub(super) kv_log: Option<Vec<KvEvent>>,
    pub(super) scratch: Scratch,
}

/// Memory that is reused from step to step.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub hits: Vec<Hit>,
    pub prefilling: Vec<SeqId>,
    pub skipped: Vec<Urgency>,
}

/// Where the KV of a block comes from at admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hit {
    /// The prefix cache.
    Device(BlockId),
    /// The table of the sequence that the prompt is shared with.
    Shared(BlockId),
    /// The host's prefix cache.
    Host(HostBlockId),
    /// Where it was swapped to.
    Own(HostBlockId),
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

impl Scheduler {
    /// An idle scheduler for a runner of this capacity.
    ///
    /// # Errors
    /// Contradictions between the options, or between them and the runner, with the reason.
    pub fn new(config: SchedulerConfig, capacity: Capacity) -> Result<Self> {
        config.validate(&capacity)?;
        let mut scheduler = Self {
            pool: BlockPool::new(capacity.block_count as usize),
            host: HostStore::new(capacity.host_blocks as usize),
            chain: HashChain::new(HashChain::DEFAULT_SEED),
            sequences: FxHashMap::default(),
            waiting: WaitingQueue::default(),
            followers: FxHashMap::default(),
            parked: 0,
            running: Vec::with_capacity(config.max_num_seqs),
            free_slots: Vec::with_capacity(config.max_num_seqs),
            closed_slots: Vec::with_capacity(config.max_num_seqs),
            saves: Vec::new(),
            loaded: Vec::new(),
            flights: VecDeque::with_capacity(config.max_in_flight),
            spare_rows: Vec::with_capacity(config.max_in_flight),
            step_limit: config.max_steps,
            prompt_limit: usize::MAX,
            costs: Costs::default(),
            pause: Pause::None,
            last_epoch: Epoch(0),
            retired: Epoch(0),
            next_seq: 0,
            owed: false,
            guided: 0,
            grown: Vec::new(),
            unready: 0,
            stuck: false,
            logprob_room: 0,
            logprob_claim: None,
            idle_results: 0,
            totals: Totals::default(),
            kv_log: None,
            scratch: Scratch::default(),
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

    /// The same scheduler for a model or adapter that block hashes must tell apart from others: `keys` stand in the
    /// extra keys of every first block, before the salt. Set it before the first sequence.
    pub fn with_extra_keys(mut self, keys: &[&str]) -> Self {
        self.chain = self.chain.with_extra_keys(keys);
        self
    }

    /// The same scheduler with a log of what can be found by its content; see [`Scheduler::drain_kv_events`].
    pub fn with_kv_events(mut self) -> Self {
        self.kv_log = Some(Vec::new());
        self
    }

    /// What was named, evicted and cleared since the last call, in order; nothing unless it is
    /// [logged](Scheduler::with_kv_events).
    pub fn drain_kv_events(&mut self) -> impl Iterator<Item = KvEvent> {
        self.kv_log.iter_mut().flat_map(|log| log.drain(..))
    }

    /// Limits the decode steps of later submissions, as the time that a step takes makes wise: a submission that runs
    /// long keeps new requests waiting. Clamped to 1 and the configured most.
    pub fn set_step_limit(&mut self, steps: u16) {
        self.step_limit = steps.clamp(1, self.config.max_steps);
    }

    /// Limits the prompt tokens of later steps, as the time that they take makes wise: a step comes in pieces, but no smaller
    /// ones than its dispatches. Without chunked prefill nothing is limited. Clamped to at least 1.
    pub fn set_prompt_limit(&mut self, tokens: u32) {
        self.prompt_limit = tokens.max(1) as usize;
    }

    /// What work costs, as far as it is known now; [`Preemption::Auto`](super::Preemption) decides by it.
    pub fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
    }

    /// The host ends a sequence: a stop text, a cancel, a dropped stream. Its blocks return once the submissions that
    /// use them retired; results that still come are dropped; there is no event. Unknown ids are fine.
    pub fn finish(&mut self, seq: SeqId) {
        self.remove(seq);
        self.checked();
    }

    /// What a [held](super::NewSequence::held) sequence waited for is there: it takes its place in the queue. Others are
    /// left as they are.
    pub fn release(&mut self, seq: SeqId) {
        self.stuck = false;
        let Some(Sequence { state: SeqState::Parked(Awaits::Caller), leader, .. }) = self.sequences.get(&seq) else {
            return;
        };
        // The prompt that it shares may still have to be computed.
        let leader = leader.and_then(|leader| self.sequences.get(&leader));
        match leader.filter(|leader| leader.computed < leader.prompt_len).map(Sequence::id) {
            Some(leader) => {
                self.sequence_mut(seq).state = SeqState::Parked(Awaits::Leader(leader));
                self.followers.entry(leader).or_default().push(seq);
            }
            None => self.unpark(seq),
        }
        self.checked();
    }

    /// Whether a sequence is unfinished or a submission is under way.
    pub fn has_work(&self) -> bool {
        !self.sequences.is_empty() || !self.flights.is_empty()
    }

    /// Whether nothing is under way and nothing will move until the caller does something: release, resume, add, set ready.
    pub fn awaits_caller(&self) -> bool {
        let only_parked = self.waiting.is_empty() && self.running.is_empty();
        let held_up = match self.pause {
            Pause::None => only_parked,
            Pause::New => self.running.is_empty(),
            Pause::All => true,
        };
        self.flights.is_empty() && (held_up || self.stuck)
    }

    /// Submissions under way.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// The settings.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Tokens that may still be sampled for a sequence; 0 for unknown ones.
    pub fn remaining(&self, seq: SeqId) -> usize {
        self.sequences.get(&seq).map_or(0, Sequence::remaining)
    }

    /// The call that a sequence belongs to, while it is not finished.
    pub fn request_of(&self, seq: SeqId) -> Option<RequestId> {
        self.sequences.get(&seq).map(|sequence| sequence.request)
    }

    /// Takes a sequence out of everything.
    pub(super) fn remove(&mut self, seq: SeqId) {
        let Some(mut sequence) = self.sequences.remove(&seq) else { return };
        self.unready -= usize::from(!sequence.ready);
        self.guided -= usize::from(sequence.sampling.is_guided());
        self.stuck = false;
        match sequence.state {
            SeqState::Prefill(slot) | SeqState::Decode(slot) => {
                self.running.retain(|other| other.seq != seq);
                self.close_slot(slot);
            }
            SeqState::Waiting => {
                let sequences = &self.sequences;
                self.waiting.give_up(|seq| waits(sequences, seq));
            }
            SeqState::Parked(awaits) => {
                self.parked -= 1;
                if let Awaits::Leader(leader) = awaits
                    && let Some(followers) = self.followers.get_mut(&leader)
                {
                    followers.retain(|other| *other != seq);
                }
            }
            SeqState::Done(_) => {}
        }
        release_blocks(&mut self.pool, &mut self.host, &mut sequence);
        // Whoever waited for its prompt must do without.
        self.unpark_followers(seq);
    }

    /// Lets those go on that waited for the prompt of `leader`.
    pub(super) fn unpark_followers(&mut self, leader: SeqId) {
        for seq in self.followers.remove(&leader).unwrap_or_default() {
            self.unpark(seq);
        }
    }

    fn unpark(&mut self, seq: SeqId) {
        let sequence = self.sequences.get_mut(&seq).expect("parked sequences exist");
        sequence.state = SeqState::Waiting;
        self.parked -= 1;
        self.waiting.push(sequence.urgency);
    }

    /// Gives the slot back. The next plan tells the runner, unless it has a new owner by then.
    pub(super) fn close_slot(&mut self, slot: SlotId) {
        self.grown.retain(|update| update.slot != slot);
        self.free_slots.push(slot);
        self.closed_slots.push(slot);
    }

    pub(super) fn free_all_slots(&mut self) {
        self.grown.clear();
        self.free_slots.clear();
        // Taken from the back: slot 0 first.
        self.free_slots.extend((0..self.config.max_num_seqs as u32).rev().map(SlotId));
    }

    pub(super) fn checked(&self) {
        #[cfg(test)]
        self.check();
    }

    pub(super) fn sequence(&self, seq: SeqId) -> &Sequence {
        self.sequences.get(&seq).expect("queued and running sequences exist")
    }

    pub(super) fn sequence_mut(&mut self, seq: SeqId) -> &mut Sequence {
        self.sequences.get_mut(&seq).expect("queued and running sequences exist")
    }

    pub(super) fn log_kv(&mut self, event: impl FnOnce() -> KvEvent) {
        if let Some(log) = &mut self.kv_log {
            log.push(event());
        }
    }
}

/// Whether the waiting queue's entry of `seq` is good.
pub(super) fn waits(sequences: &FxHashMap<SeqId, Sequence>, seq: SeqId) -> bool {
    sequences.get(&seq).is_some_and(|sequence| sequence.state == SeqState::Waiting)
}

/// Releases all blocks from the back, so that the front of the prefix survives longest in the cache, and the host's.
pub(super) fn release_blocks(pool: &mut BlockPool, host: &mut HostStore, sequence: &mut Sequence) {
    for block in sequence.held().iter().rev() {
        pool.release(*block, sequence.last_use);
    }
    for block in sequence.host.drain(..) {
        host.unpin(block);
    }
    sequence.table.clear();
    sequence.slid = 0;
}

/// The end of a sequence as an event and in its state; its slot is free at once.
impl Scheduler {
    pub(super) fn end(&mut self, seq: SeqId, reason: super::FinishReason, events: &mut Vec<SchedEvent>) {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        let state = sequence.state;
        sequence.end(reason);
        if reason == super::FinishReason::Error {
            self.withdraw(seq);
        }
        match state {
            SeqState::Prefill(slot) | SeqState::Decode(slot) => {
                self.running.retain(|other| other.seq != seq);
                self.close_slot(slot);
            }
            SeqState::Waiting => {
                let sequences = &self.sequences;
                self.waiting.give_up(|seq| waits(sequences, seq));
            }
            SeqState::Parked(_) | SeqState::Done(_) => unreachable!("{seq} ends in state {state:?}"),
        }
        events.push(SchedEvent::Finished { seq, reason });
    }
}
