//! Blocks for rows: taken from the pool with what was cached in them saved to the host, copied before a write if they
//! are shared, given back when they slide out of the attention window.

use super::plan::{BlockCopy, BlockSave, StepPlan, TableUpdate};
use super::sequence::Sequence;
use super::{SchedEvent, Scheduler};
use crate::base::{BLOCK_TOKENS, BlockId, HostBlockId, SeqId};
use crate::cache::{BlockName, HashChain, KvEvent, Medium};

/// Evicted blocks that one submission saves. A long prompt may evict thousands, and the rest is better computed again than
/// waited for.
const MOST_EVICTIONS_SAVED: usize = 64;

impl Scheduler {
    /// A block from the free list, which the caller has counted.
    pub(super) fn take_block(&mut self, events: &mut Vec<SchedEvent>) -> BlockId {
        let taken = self.pool.allocate().expect("free blocks were counted");
        if let Some(name) = taken.evicted {
            let kept = self.keep(taken.block, &name);
            self.totals.evictions += 1;
            events.push(SchedEvent::Evicted { block: taken.block, kept });
            self.log_kv(|| KvEvent::BlockRemoved { hash: name.hash, medium: Medium::Gpu });
        }
        taken.block
    }

    /// Sends an evicted block to the host's prefix cache if it has room and does not know it yet.
    fn keep(&mut self, block: BlockId, name: &BlockName) -> Option<HostBlockId> {
        if !self.config.host_cache {
            return None;
        }
        if let Some(known) = self.host.find(&name.key()) {
            return Some(known);
        }
        if self.saves.len() >= MOST_EVICTIONS_SAVED {
            return None;
        }
        let host = self.reserve_host()?;
        self.name_on_host(host, name);
        self.host.unpin(host);
        self.saves.push(BlockSave { block, host });
        Some(host)
    }

    /// A block of the host that the next submission saves to.
    pub(super) fn reserve_host(&mut self) -> Option<HostBlockId> {
        let (host, evicted) = self.host.reserve(self.last_epoch.next())?;
        if let Some(name) = evicted {
            self.log_kv(|| KvEvent::BlockRemoved { hash: name.hash, medium: Medium::Cpu });
        }
        Some(host)
    }

    pub(super) fn name_on_host(&mut self, host: HostBlockId, name: &BlockName) {
        if self.host.publish(host, &name.key()) {
            self.log_kv(|| stored(name, Medium::Cpu));
        }
    }

    /// Appends blocks to the table of `seq` until `positions` have one each; they were counted before.
    pub(super) fn grow_table(
        &mut self,
        seq: SeqId,
        positions: usize,
        plan: &mut StepPlan,
        events: &mut Vec<SchedEvent>,
    ) {
        while self.sequence(seq).table.len() * BLOCK_TOKENS < positions {
            let block = self.take_block(events);
            let sequence = self.sequence_mut(seq);
            let slot = sequence.slot().expect("planned sequences have a slot");
            plan.table_updates.push(TableUpdate { slot, index: sequence.table.len() as u32, block });
            sequence.table.push(block);
        }
    }

    /// Sees to it that `seq` alone holds the block of `position`, which it is about to write: copies it if it is shared
    /// (copy-on-write). The free block for that was counted before.
    pub(super) fn make_writable(
        &mut self,
        seq: SeqId,
        position: usize,
        plan: &mut StepPlan,
        events: &mut Vec<SchedEvent>,
    ) {
        let index = position / BLOCK_TOKENS;
        let source = self.sequence(seq).table[index];
        if self.pool.refs(source) == 1 {
            return;
        }
        let target = self.take_block(events);
        let epoch = self.last_epoch.next();
        let sequence = self.sequence_mut(seq);
        sequence.table[index] = target;
        let slot = sequence.slot().expect("planned sequences have a slot");
        let entry = plan.table_updates.iter_mut().find(|update| update.slot == slot && update.index == index as u32);
        match entry {
            Some(update) => update.block = target,
            None => plan.table_updates.push(TableUpdate { slot, index: index as u32, block: target }),
        }
        plan.copies.push(BlockCopy { source, target });
        // The copy reads it in this submission.
        self.pool.release(source, epoch);
        self.totals.copies += 1;
        events.push(SchedEvent::Copied { seq, source, target });
    }

    /// Gives back the blocks that no row of `seq` from position `next` on can see.
    pub(super) fn slide(&mut self, seq: SeqId, next: usize) {
        let Some(window) = self.capacity.window else { return };
        let Self { pool, sequences, config, .. } = self;
        let Some(sequence) = sequences.get_mut(&seq) else { return };
        let mut first = (first_visible(next, window as usize) / BLOCK_TOKENS).min(sequence.table.len());
        if config.prefix_cache {
            // A block gets its name once its submission has retired. Given back before, it would never have one, and
            // nobody could find anything after it.
            first = first.min(sequence.published);
        }
        while sequence.slid < first {
            pool.release(sequence.table[sequence.slid], sequence.last_use);
            sequence.slid += 1;
        }
    }

    /// Takes back the names that a sequence gave: what led to bad logits must not serve anybody else.
    pub(super) fn withdraw(&mut self, seq: SeqId) {
        let Self { pool, host, sequences, kv_log, .. } = self;
        let Some(sequence) = sequences.get(&seq) else { return };
        for hash in &sequence.hashes {
            let withdrawn = [(pool.withdraw(hash, seq), Medium::Gpu), (host.withdraw(hash), Medium::Cpu)];
            for (_, medium) in withdrawn.into_iter().filter(|(withdrawn, _)| *withdrawn) {
                if let Some(log) = kv_log {
                    log.push(KvEvent::BlockRemoved { hash: *hash, medium });
                }
            }
        }
    }
}

/// The first position that the row at `position` sees through a window of so many tokens, itself included.
pub(super) fn first_visible(position: usize, window: usize) -> usize {
    (position + 1).saturating_sub(window)
}

pub(super) fn stored(name: &BlockName, medium: Medium) -> KvEvent {
    KvEvent::BlockStored { hash: name.hash, parent: name.parent, token_ids: name.tokens.to_vec(), medium }
}

/// Extends `hashes` to all full blocks of the known tokens.
pub(super) fn hash_full_blocks(chain: &mut HashChain, sequence: &mut Sequence) {
    let Sequence { tokens, hashes, salt, .. } = sequence;
    for block in tokens.chunks_exact(BLOCK_TOKENS).skip(hashes.len()) {
        hashes.push(chain.next(hashes.last().copied(), block, salt.as_deref()));
    }
}

/// The name of full block `index`, whose hash is known.
pub(super) fn block_name(sequence: &Sequence, index: usize) -> BlockName {
    let tokens = &sequence.tokens[index * BLOCK_TOKENS..][..BLOCK_TOKENS];
    BlockName {
        hash: sequence.hashes[index],
        parent: index.checked_sub(1).map(|before| sequence.hashes[before]),
        tokens: tokens.try_into().expect("a block has this many tokens"),
        publisher: sequence.id(),
    }
}
