//! Making room: the least urgent sequence gives up slot and blocks, keeps its tokens, and waits again. Its KV is dropped
//! and computed again later, or moves to the host and back.

use super::blocks::{block_name, hash_full_blocks};
use super::plan::BlockSave;
use super::scheduler::release_blocks;
use super::sequence::SeqState;
use super::{Estimates, PreemptReason, Preemption, Released, SchedEvent, Scheduler};
use crate::base::{BLOCK_TOKENS, HostBlockId, SeqId, ceil_div};

impl Scheduler {
    /// Preempts `seq`, which runs and has no row in the plan that is being made.
    pub(super) fn preempt(&mut self, seq: SeqId, reason: PreemptReason, events: &mut Vec<SchedEvent>) {
        let estimates = self.estimates(seq);
        let may_swap = matches!(reason, PreemptReason::NoBlock { .. })
            && match self.config.preemption {
                Preemption::Recompute => false,
                Preemption::Swap => true,
                // Without a measurement of both, what needs no host memory is the better guess.
                Preemption::Auto => estimates.swap_micros > 0 && estimates.swap_micros < estimates.recompute_micros,
            };
        let tokens = self.sequence(seq).computed as u32;
        let host = if may_swap { self.swap_out(seq) } else { None };
        self.running.retain(|other| other.seq != seq);
        let Self { pool, host: store, sequences, .. } = self;
        let sequence = sequences.get_mut(&seq).expect("running sequences exist");
        let slot = sequence.slot().expect("running sequences have a slot");
        let slid = sequence.slid;
        release_blocks(pool, store, sequence);
        sequence.state = SeqState::Waiting;
        sequence.published = 0;
        sequence.incarnation += 1;
        let how = match host {
            Some(blocks) => {
                let count = blocks.len() as u32;
                (sequence.host, sequence.slid) = (blocks, slid);
                self.totals.swaps_out += 1;
                Released::Swapped { blocks: count }
            }
            None => {
                sequence.computed = 0;
                Released::Dropped
            }
        };
        let urgency = sequence.urgency;
        self.waiting.push(urgency);
        self.close_slot(slot);
        self.totals.preemptions += 1;
        events.push(SchedEvent::Preempted { seq, reason, how, tokens, estimates });
    }

    /// What bringing `seq` back would cost either way. Blocks that the prefix cache may still hold by then are not
    /// counted: what takes memory away from a sequence takes it from the cache as well.
    fn estimates(&self, seq: SeqId) -> Estimates {
        let sequence = self.sequence(seq);
        let blocks = ceil_div(sequence.computed, BLOCK_TOKENS).saturating_sub(sequence.slid);
        Estimates {
            recompute_micros: (sequence.computed as f64 * f64::from(self.costs.prefill_micros_per_token)) as u64,
            swap_micros: (2.0 * blocks as f64 * f64::from(self.costs.move_micros_per_block)) as u64,
        }
    }

    /// Plans the saves of all KV of `seq` and names its full blocks, or changes nothing if the host lacks the room. The
    /// saves see what submissions under way still write, since they come after them.
    fn swap_out(&mut self, seq: SeqId) -> Option<Vec<HostBlockId>> {
        let named = self.config.prefix_cache;
        if named {
            let Self { chain, sequences, .. } = self;
            hash_full_blocks(chain, sequences.get_mut(&seq).expect("running sequences exist"));
        }
        let (first, end) = (self.sequence(seq).slid, ceil_div(self.sequence(seq).computed, BLOCK_TOKENS));
        // A block has its name once all its tokens are known and have KV: the newest one's is still to be computed.
        let full = match named {
            true => self.sequence(seq).hashes.len().min(self.sequence(seq).computed / BLOCK_TOKENS),
            false => 0,
        };
        // Counted first: a swap that does not fit must not cost cached prefixes their places.
        let wanted = (first..end).filter(|index| {
            let name = (*index < full).then(|| block_name(self.sequence(seq), *index));
            let known = name.as_ref().and_then(|name| self.host.find(&name.key()));
            known.is_none_or(|known| self.host.is_kept(known))
        });
        if wanted.count() > self.host.available() {
            return None;
        }
        let mut blocks = Vec::with_capacity(end - first);
        for index in first..end {
            let sequence = self.sequence(seq);
            let name = (index < full).then(|| block_name(sequence, index));
            let known = name.as_ref().and_then(|name| self.host.find(&name.key()));
            let host = match known {
                Some(known) => {
                    self.host.pin(known);
                    known
                }
                None => {
                    let host = self.reserve_host().expect("the host's blocks were counted");
                    let block = self.sequence(seq).table[index];
                    self.saves.push(BlockSave { block, host });
                    host
                }
            };
            blocks.push(host);
        }
        if named {
            for (index, host) in (first..full).zip(&blocks) {
                let name = block_name(self.sequence(seq), index);
                self.name_on_host(*host, &name);
            }
        }
        Some(blocks)
    }
}
