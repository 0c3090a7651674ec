//! What the caller does to all sequences at once: pause, reset the prefix cache, start over after a lost device.

use super::scheduler::release_blocks;
use super::sequence::SeqState;
use super::{Estimates, PreemptReason, Released, SchedEvent, Scheduler};
use crate::base::SeqId;
use crate::cache::{BlockPool, HostStore, KvEvent};
use crate::error::{Error, ErrorKind, Result};

/// What a paused scheduler leaves undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pause {
    /// Nothing: it is not paused.
    #[default]
    None,
    /// Nobody is admitted; who runs goes on, but if it is preempted it waits as well.
    New,
    /// Nothing is submitted.
    All,
}

impl Scheduler {
    /// Pauses, or with [`Pause::None`] goes on. Submissions under way end as usual.
    pub fn set_pause(&mut self, pause: Pause) {
        self.pause = pause;
        self.stuck = false;
    }

    /// Whether it is paused.
    pub fn pause(&self) -> Pause {
        self.pause
    }

    /// Forgets all cached prefixes, on the device and the host. With `preempt`, whoever runs or is swapped out computes
    /// its KV again; without, that is refused.
    ///
    /// # Errors
    /// Blocks are in use and `preempt` is false; of kind [`ErrorKind::Busy`], and nothing has changed.
    pub fn reset_prefix_cache(&mut self, preempt: bool, events: &mut Vec<SchedEvent>) -> Result<()> {
        let held = self.pool.counts().held;
        let swapped = self.host.counts().pinned;
        if !preempt && held + swapped > 0 {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "the prefix cache cannot be reset while {held} blocks and {swapped} blocks of the host are in use; \
                     wait until nothing runs, or reset it with preemption"
                ),
            ));
        }
        while let Some(tail) = self.running.last() {
            self.preempt(tail.seq, PreemptReason::Reset, events);
        }
        let Self { pool, host, sequences, .. } = self;
        for sequence in sequences.values_mut().filter(|sequence| !sequence.host.is_empty()) {
            release_blocks(pool, host, sequence);
            sequence.computed = 0;
        }
        self.pool.clear_names();
        self.host.clear_names();
        self.log_kv(|| KvEvent::AllBlocksCleared);
        self.checked();
        Ok(())
    }

    /// After the loss of a device: everything that ran waits again, in order and before what already waited. Tokens
    /// that the caller has seen survive; submissions under way, KV, prefix cache and host blocks are gone.
    pub fn requeue_all(&mut self, events: &mut Vec<SchedEvent>) {
        let ran: Vec<SeqId> = self.running.drain(..).map(|urgency| urgency.seq).collect();
        for sequence in self.sequences.values_mut() {
            // A token that was under way and never came is sampled again, with the same mask.
            if sequence.in_flight > 0 && !sequence.ready {
                sequence.ready = true;
                self.unready -= 1;
            }
            sequence.table.clear();
            sequence.host.clear();
            (sequence.computed, sequence.in_flight, sequence.published, sequence.slid) = (0, 0, 0, 0);
            sequence.incarnation += 1;
        }
        for seq in ran {
            let sequence = self.sequence_mut(seq);
            sequence.state = SeqState::Waiting;
            let urgency = sequence.urgency;
            self.waiting.push(urgency);
            let (reason, estimates) = (PreemptReason::DeviceLost, Estimates::default());
            events.push(SchedEvent::Preempted { seq, reason, how: Released::Dropped, tokens: 0, estimates });
        }
        self.flights.clear();
        self.stuck = false;
        self.retired = self.last_epoch;
        self.pool = BlockPool::new(self.pool.block_count());
        self.pool.retire(self.retired);
        self.host = HostStore::new(self.host.counts().total);
        self.saves.clear();
        self.loaded.clear();
        self.closed_slots.clear();
        self.free_all_slots();
        self.log_kv(|| KvEvent::AllBlocksCleared);
        self.checked();
    }
}
