//! The KV blocks: who holds them, when they may be used again, what they can be found by.
//!
//! Invariants:
//! 1. `refs` is the number of tables that hold a block.
//! 2. A block is either held (`refs > 0`), pending or free; the latter two are lists.
//! 3. A released block stays pending until the last submission that used it, by any holder, has retired.
//! 4. Only full blocks are published, by their holder, after the submission that filled them retired.
//! 5. A hit is confirmed against the tokens ([`PrefixIndex`]).
//! 6. Published blocks are never written: a block loses its name when it is handed out anew.
//!
//! Freed blocks keep their name and are taken least recently freed first, so that a cached prefix lives as long as
//! memory allows. Every operation is O(1) for a block.

use super::block_list::{BlockList, Links};
use super::{BlockKey, BlockName, PrefixIndex};
use crate::base::{BlockId, Epoch, SeqId};
use std::collections::VecDeque;

/// How the blocks are spread over the three states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// In some table.
    pub held: usize,
    /// Released, but a submission under way may still touch them.
    pub pending: usize,
    /// Ready to be handed out, whether or not they are cached.
    pub free: usize,
}

/// A block just handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Which.
    pub block: BlockId,
    /// What was cached in it and is forgotten now; its content is still there until the block is written.
    pub evicted: Option<BlockName>,
}

#[derive(Clone, Copy, Debug)]
struct BlockMeta {
    refs: u32,
    /// Latest last use that any releaser named.
    last_use: Epoch,
    pending: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct BlockPool {
    meta: Vec<BlockMeta>,
    links: Links,
    free: BlockList,
    /// By epoch, ascending. No longer than the number of submissions under way.
    pending: VecDeque<(Epoch, BlockList)>,
    retired: Epoch,
    index: PrefixIndex,
}

impl BlockPool {
    /// A pool of free blocks, handed out in the order of their ids at first.
    pub fn new(block_count: usize) -> Self {
        let mut pool = Self {
            meta: vec![BlockMeta { refs: 0, last_use: Epoch(0), pending: false }; block_count],
            links: Links::new(block_count),
            free: BlockList::EMPTY,
            pending: VecDeque::with_capacity(8),
            retired: Epoch(0),
            index: PrefixIndex::new(block_count),
        };
        for id in 0..block_count as u32 {
            pool.free.push_back(&mut pool.links, BlockId(id));
        }
        pool
    }

    /// All blocks.
    pub fn block_count(&self) -> usize {
        self.meta.len()
    }

    /// Blocks by state.
    pub fn counts(&self) -> BlockCounts {
        let free = self.free.len();
        let pending = self.pending.iter().map(|(_, list)| list.len()).sum();
        BlockCounts { held: self.meta.len() - free - pending, pending, free }
    }

    /// Blocks that [`BlockPool::allocate`] can hand out now.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// A block for one holder, or `None` if none is free. Whatever was cached in it is forgotten.
    pub fn allocate(&mut self) -> Option<Taken> {
        let block = self.free.pop_front(&mut self.links)?;
        let evicted = self.index.forget(block);
        let meta = &mut self.meta[block.index()];
        debug_assert_eq!(meta.refs, 0, "free block {block} has holders");
        meta.refs = 1;
        self.checked();
        Some(Taken { block, evicted })
    }

    /// One more holder for a block that somebody holds, named or not. It must be copied before either of them writes to a
    /// position that the other may read.
    pub fn share(&mut self, block: BlockId) {
        let meta = &mut self.meta[block.index()];
        assert!(meta.refs > 0, "block {block} has no holder to share it with");
        meta.refs += 1;
    }

    /// One more holder for a block found in the index; a free or pending one comes back to life.
    pub fn acquire(&mut self, block: BlockId) {
        assert!(self.index.is_published(block), "block {block} has no name and cannot be shared");
        let meta = &mut self.meta[block.index()];
        if meta.refs == 0 {
            let list = if meta.pending {
                let at = self.pending.partition_point(|(epoch, _)| *epoch < meta.last_use);
                debug_assert_eq!(self.pending[at].0, meta.last_use, "pending block {block} is in no list");
                &mut self.pending[at].1
            } else {
                &mut self.free
            };
            list.remove(&mut self.links, block);
        }
        meta.refs += 1;
        meta.pending = false;
        self.checked();
    }

    /// One holder less. `last_use` is the last submission in which that holder used the block; with the last holder
    /// the block becomes free once every such submission has retired. A table releases its blocks from the back, so
    /// that the front of a prefix is reused last.
    pub fn release(&mut self, block: BlockId, last_use: Epoch) {
        let meta = &mut self.meta[block.index()];
        assert!(meta.refs > 0, "block {block} was released more often than taken");
        meta.refs -= 1;
        meta.last_use = meta.last_use.max(last_use);
        if meta.refs == 0 {
            let epoch = meta.last_use;
            meta.pending = epoch > self.retired;
            if meta.pending {
                let at = self.pending.partition_point(|(other, _)| *other < epoch);
                if self.pending.get(at).is_none_or(|(other, _)| *other != epoch) {
                    self.pending.insert(at, (epoch, BlockList::EMPTY));
                }
                self.pending[at].1.push_back(&mut self.links, block);
            } else {
                self.free.push_back(&mut self.links, block);
            }
        }
        self.checked();
    }

    /// All submissions up to `epoch` are over.
    pub fn retire(&mut self, epoch: Epoch) {
        self.retired = self.retired.max(epoch);
        while self.pending.front().is_some_and(|(last_use, _)| *last_use <= self.retired) {
            let (_, list) = self.pending.pop_front().expect("the front was just seen");
            for block in list.iter(&self.links) {
                self.meta[block.index()].pending = false;
            }
            self.free.append(&mut self.links, list);
        }
        self.checked();
    }

    /// The cached block with this content.
    pub fn lookup(&self, key: &BlockKey) -> Option<BlockId> {
        self.index.lookup(key)
    }

    /// Names a held, full block whose content is known and computed. False if an equal block has the name.
    pub fn publish(&mut self, block: BlockId, key: &BlockKey, publisher: SeqId) -> bool {
        assert!(self.meta[block.index()].refs > 0, "block {block} is published without a holder");
        let published = self.index.publish(block, key, publisher);
        self.checked();
        published
    }

    /// Takes a name back if `publisher` gave it; holders keep the block.
    pub fn withdraw(&mut self, hash: &super::BlockHash, publisher: SeqId) -> bool {
        let withdrawn = self.index.withdraw(hash, publisher);
        self.checked();
        withdrawn
    }

    /// Takes all names back; holders keep their blocks.
    pub fn clear_names(&mut self) {
        self.index.clear();
    }

    /// Holders of a block.
    pub fn refs(&self, block: BlockId) -> u32 {
        self.meta[block.index()].refs
    }

    /// Whether nobody holds the block and no submission under way can touch it.
    pub fn is_free(&self, block: BlockId) -> bool {
        let meta = self.meta[block.index()];
        meta.refs == 0 && !meta.pending
    }

    /// Whether the block can be found by its content.
    pub fn is_published(&self, block: BlockId) -> bool {
        self.index.is_published(block)
    }

    /// Blocks that can be found by their content.
    pub fn published_count(&self) -> usize {
        self.index.len()
    }

    /// Panics if an invariant of the module is broken. O(blocks), so it runs in tests only.
    pub fn check(&self) {
        let mut listed = vec![0u32; self.meta.len()];
        let lists = std::iter::once((None, &self.free)).chain(self.pending.iter().map(|(e, list)| (Some(*e), list)));
        for (epoch, list) in lists {
            let mut count = 0;
            for block in list.iter(&self.links) {
                let meta = self.meta[block.index()];
                listed[block.index()] += 1;
                count += 1;
                assert_eq!(meta.refs, 0, "block {block} is held and listed");
                assert_eq!(meta.pending, epoch.is_some(), "block {block} is in the wrong list");
                match epoch {
                    Some(epoch) => assert_eq!(meta.last_use, epoch, "block {block} waits for the wrong epoch"),
                    None => assert!(meta.last_use <= self.retired, "block {block} was freed too early"),
                }
            }
            assert_eq!(count, list.len(), "list length");
        }
        for (index, meta) in self.meta.iter().enumerate() {
            assert_eq!(listed[index] == 0, meta.refs > 0, "block {index} has {} holders", meta.refs);
            assert!(listed[index] <= 1, "block {index} is in several lists");
        }
        assert!(self.pending.iter().all(|(epoch, _)| *epoch > self.retired), "a retired epoch keeps blocks");
        assert!(self.pending.iter().is_sorted_by(|a, b| a.0 < b.0), "pending lists are out of order");
        self.index.check();
    }

    fn checked(&self) {
        #[cfg(test)]
        self.check();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BlockHash, BlockKey};
    use super::*;
    use crate::base::TokenId;

    const TOKENS: [TokenId; 16] = [3; 16];

    fn key(name: u8) -> BlockKey<'static> {
        BlockKey { hash: BlockHash([name; 32]), parent: None, tokens: &TOKENS }
    }

    fn next(pool: &mut BlockPool) -> Option<BlockId> {
        pool.allocate().map(|taken| taken.block)
    }

    fn take(pool: &mut BlockPool, count: usize) -> Vec<BlockId> {
        (0..count).map(|_| next(pool).unwrap()).collect()
    }

    #[test]
    fn blocks_come_in_id_order_and_run_out() {
        let mut pool = BlockPool::new(3);
        assert_eq!(take(&mut pool, 3), [0, 1, 2].map(BlockId));
        assert_eq!(next(&mut pool), None);
        assert_eq!(pool.counts(), BlockCounts { held: 3, pending: 0, free: 0 });
    }

    #[test]
    fn freed_blocks_wait_for_their_epoch() {
        let mut pool = BlockPool::new(2);
        let blocks = take(&mut pool, 2);
        pool.release(blocks[0], Epoch(2));
        pool.release(blocks[1], Epoch(1));
        assert_eq!(next(&mut pool), None, "both are still in use on the device");
        pool.retire(Epoch(1));
        assert_eq!(next(&mut pool), Some(blocks[1]));
        assert_eq!(next(&mut pool), None);
        pool.retire(Epoch(2));
        assert_eq!(next(&mut pool), Some(blocks[0]));
    }

    #[test]
    fn a_shared_block_waits_for_the_latest_of_its_holders() {
        let mut pool = BlockPool::new(1);
        let block = next(&mut pool).unwrap();
        assert!(pool.publish(block, &key(1), SeqId(1)));
        pool.acquire(block);
        pool.release(block, Epoch(9));
        pool.release(block, Epoch(4));
        pool.retire(Epoch(8));
        assert!(!pool.is_free(block));
        pool.retire(Epoch(9));
        assert!(pool.is_free(block));
    }

    #[test]
    fn the_cache_keeps_freed_blocks_until_they_are_handed_out() {
        // Defect (b): a freed block that is also cached must never belong to two sequences.
        let mut pool = BlockPool::new(2);
        let blocks = take(&mut pool, 2);
        pool.publish(blocks[0], &key(1), SeqId(1));
        pool.release(blocks[0], Epoch(0));
        assert_eq!(pool.lookup(&key(1)), Some(blocks[0]));
        pool.acquire(blocks[0]);
        assert_eq!(next(&mut pool), None, "a revived block has left the free list");
        pool.release(blocks[0], Epoch(0));
        assert_eq!(next(&mut pool), Some(blocks[0]));
        assert_eq!(pool.lookup(&key(1)), None, "a block that was handed out anew has lost its name");
    }

    #[test]
    fn eviction_takes_the_least_recently_freed_and_never_a_held_block() {
        // Defect (c): eviction freed blocks that live sequences still used.
        let mut pool = BlockPool::new(4);
        let blocks = take(&mut pool, 4);
        for (name, block) in blocks.iter().enumerate() {
            pool.publish(*block, &key(name as u8), SeqId(1));
        }
        // A table of blocks 0, 1, 2 is freed from its back; block 0 is revived by another sequence.
        for at in [2, 1, 0] {
            pool.release(blocks[at], Epoch(0));
        }
        pool.acquire(blocks[0]);
        assert_eq!(next(&mut pool), Some(blocks[2]));
        assert_eq!(next(&mut pool), Some(blocks[1]));
        assert_eq!(next(&mut pool), None);
        assert_eq!(pool.lookup(&key(0)), Some(blocks[0]));
        assert_eq!(pool.lookup(&key(3)), Some(blocks[3]));
    }

    #[test]
    fn pending_blocks_can_be_revived() {
        let mut pool = BlockPool::new(3);
        let blocks = take(&mut pool, 3);
        pool.publish(blocks[1], &key(1), SeqId(1));
        blocks.iter().for_each(|block| pool.release(*block, Epoch(5)));
        pool.acquire(blocks[1]);
        pool.retire(Epoch(5));
        assert_eq!(pool.counts(), BlockCounts { held: 1, pending: 0, free: 2 });
        pool.release(blocks[1], Epoch(5));
        assert_eq!(pool.free_count(), 3);
    }

    #[test]
    #[should_panic(expected = "released more often than taken")]
    fn a_double_release_is_caught() {
        let mut pool = BlockPool::new(1);
        let block = next(&mut pool).unwrap();
        pool.release(block, Epoch(0));
        pool.release(block, Epoch(0));
    }

    #[test]
    #[should_panic(expected = "has no name")]
    fn only_published_blocks_are_shared() {
        let mut pool = BlockPool::new(1);
        let block = next(&mut pool).unwrap();
        pool.acquire(block);
    }
}
