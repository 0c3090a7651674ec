//! The host's KV blocks: where swapped sequences wait, and the second level of the prefix cache.
//!
//! Invariants:
//! 1. A block is free, or pinned by one or more swapped sequences, or kept for its name, or both of the latter.
//! 2. Content arrives when the submission that saves it has retired; until then a block is neither loaded nor found.
//! 3. Only named blocks that nobody pins give way to new ones, least recently used first.
//!
//! Like [`BlockPool`](super::BlockPool) this is book-keeping only: the bytes belong to the runner.

use super::block_list::{BlockList, Links};
use super::{BlockKey, BlockName, PrefixIndex};
use crate::base::{BlockId, Epoch, HostBlockId};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, Default)]
struct HostMeta {
    pins: u32,
    /// The submission whose save has not retired yet.
    arriving: Option<Epoch>,
}

/// How the host's blocks are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// All.
    pub total: usize,
    /// Held by swapped sequences.
    pub pinned: usize,
    /// Found by their content.
    pub cached: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct HostStore {
    meta: Vec<HostMeta>,
    links: Links,
    /// Without content.
    free: BlockList,
    /// Named, unpinned and complete, least recently used first.
    kept: BlockList,
    arriving: VecDeque<(Epoch, HostBlockId)>,
    index: PrefixIndex,
    pinned: usize,
}

/// Lists and index count in `BlockId`s; which memory they mean is this module's affair.
fn local(block: HostBlockId) -> BlockId {
    BlockId(block.0)
}

impl HostStore {
    /// An empty store.
    pub fn new(block_count: usize) -> Self {
        let mut store = Self {
            meta: vec![HostMeta::default(); block_count],
            links: Links::new(block_count),
            free: BlockList::EMPTY,
            kept: BlockList::EMPTY,
            arriving: VecDeque::new(),
            index: PrefixIndex::new(block_count),
            pinned: 0,
        };
        for id in 0..block_count as u32 {
            store.free.push_back(&mut store.links, BlockId(id));
        }
        store
    }

    /// Blocks by use.
    pub fn counts(&self) -> HostCounts {
        HostCounts { total: self.meta.len(), pinned: self.pinned, cached: self.index.len() }
    }

    /// Blocks that [`HostStore::reserve`] can hand out now.
    pub fn available(&self) -> usize {
        self.free.len() + self.kept.len()
    }

    /// A block whose content the submission `epoch` will save, pinned once; forgets the least recently used name if no
    /// other block is left, and says which.
    pub fn reserve(&mut self, epoch: Epoch) -> Option<(HostBlockId, Option<BlockName>)> {
        let block = match self.free.pop_front(&mut self.links) {
            Some(block) => block,
            None => self.kept.pop_front(&mut self.links)?,
        };
        let evicted = self.index.forget(block);
        self.meta[block.index()] = HostMeta { pins: 1, arriving: Some(epoch) };
        self.pinned += 1;
        let block = HostBlockId(block.0);
        self.arriving.push_back((epoch, block));
        Some((block, evicted))
    }

    /// One more sequence needs the block.
    pub fn pin(&mut self, block: HostBlockId) {
        let meta = &mut self.meta[block.index()];
        if meta.pins == 0 {
            self.pinned += 1;
            if meta.arriving.is_none() {
                self.kept.remove(&mut self.links, local(block));
            }
        }
        meta.pins += 1;
    }

    /// One less. A block without a name is free then, unless its content is still on the way.
    pub fn unpin(&mut self, block: HostBlockId) {
        let meta = &mut self.meta[block.index()];
        assert!(meta.pins > 0, "host block {block} was released more often than taken");
        meta.pins -= 1;
        if meta.pins == 0 {
            self.pinned -= 1;
            if meta.arriving.is_none() {
                self.settle(local(block));
            }
        }
    }

    /// All submissions up to `epoch` are over: what they saved is here.
    pub fn retire(&mut self, epoch: Epoch) {
        while self.arriving.front().is_some_and(|(saved, _)| *saved <= epoch) {
            let Some((_, block)) = self.arriving.pop_front() else { return };
            let meta = &mut self.meta[block.index()];
            meta.arriving = None;
            if meta.pins == 0 {
                self.settle(local(block));
            }
        }
    }

    /// Whether the content has arrived.
    pub fn is_ready(&self, block: HostBlockId) -> bool {
        self.meta[block.index()].arriving.is_none()
    }

    /// Whether the block is there for its name alone, and so among the [`available`](Self::available).
    pub fn is_kept(&self, block: HostBlockId) -> bool {
        let meta = &self.meta[block.index()];
        meta.pins == 0 && meta.arriving.is_none()
    }

    /// Names a block by what it holds, or will hold.
    pub fn publish(&mut self, block: HostBlockId, key: &BlockKey) -> bool {
        // Names on the host are given back by eviction alone, so nobody needs to be known as the publisher.
        self.index.publish(local(block), key, crate::base::SeqId(u64::MAX))
    }

    /// The block with this content, whether it has arrived or not.
    pub fn find(&self, key: &BlockKey) -> Option<HostBlockId> {
        self.index.lookup(key).map(|block| HostBlockId(block.0))
    }

    /// The block with this content, if it can be loaded now.
    pub fn lookup(&self, key: &BlockKey) -> Option<HostBlockId> {
        self.find(key).filter(|block| self.is_ready(*block))
    }

    /// Takes the name `hash` away: its content must not serve anybody. False if there is none.
    pub fn withdraw(&mut self, hash: &super::BlockHash) -> bool {
        let Some(block) = self.index.withdraw_any(hash) else { return false };
        let meta = self.meta[block.index()];
        if meta.pins == 0 && meta.arriving.is_none() {
            self.kept.remove(&mut self.links, block);
            self.free.push_back(&mut self.links, block);
        }
        true
    }

    /// Forgets all names. Pinned blocks stay with their sequences.
    pub fn clear_names(&mut self) {
        self.index.clear();
        let kept = std::mem::replace(&mut self.kept, BlockList::EMPTY);
        self.free.append(&mut self.links, kept);
    }

    /// Puts a block that nobody pins and whose content is complete where it belongs.
    fn settle(&mut self, block: BlockId) {
        let list = if self.index.is_published(block) { &mut self.kept } else { &mut self.free };
        list.push_back(&mut self.links, block);
    }

    /// Panics if an invariant is broken, or if the pins are not those of `holders`.
    pub fn check(&self, holders: &dyn Fn(HostBlockId) -> u32) {
        let mut listed = vec![0; self.meta.len()];
        for block in self.free.iter(&self.links) {
            listed[block.index()] += 1;
            assert!(!self.index.is_published(block), "free host block {block} has a name");
        }
        for block in self.kept.iter(&self.links) {
            listed[block.index()] += 1;
            assert!(self.index.is_published(block), "kept host block {block} has no name");
        }
        let mut pinned = 0;
        for (index, meta) in self.meta.iter().enumerate() {
            let block = HostBlockId(index as u32);
            assert_eq!(meta.pins, holders(block), "pins of host block {block}");
            pinned += usize::from(meta.pins > 0);
            let expected = usize::from(meta.pins == 0 && meta.arriving.is_none());
            assert_eq!(listed[index], expected, "lists of host block {block}");
            let arriving = self.arriving.iter().filter(|(_, other)| *other == block).count();
            assert_eq!(arriving, usize::from(meta.arriving.is_some()), "arrival of host block {block}");
        }
        assert_eq!(pinned, self.pinned, "count of pinned host blocks");
        self.index.check();
    }
}

#[cfg(test)]
mod tests {
    use super::super::BlockHash;
    use super::*;
    use crate::base::TokenId;

    const TOKENS: [TokenId; 16] = [5; 16];

    fn key(name: u8) -> BlockKey<'static> {
        BlockKey { hash: BlockHash([name; 32]), parent: None, tokens: &TOKENS }
    }

    #[test]
    fn content_is_found_when_it_has_arrived() {
        let mut store = HostStore::new(2);
        let block = store.reserve(Epoch(3)).unwrap().0;
        assert!(store.publish(block, &key(1)));
        store.unpin(block);
        assert_eq!((store.lookup(&key(1)), store.find(&key(1))), (None, Some(block)));
        store.retire(Epoch(2));
        assert_eq!(store.lookup(&key(1)), None);
        store.retire(Epoch(3));
        assert_eq!(store.lookup(&key(1)), Some(block));
        store.check(&|_| 0);
    }

    #[test]
    fn pinned_blocks_stay_and_the_oldest_name_gives_way() {
        let mut store = HostStore::new(2);
        for name in [1, 2] {
            let block = store.reserve(Epoch(1)).unwrap().0;
            store.publish(block, &key(name));
            store.unpin(block);
        }
        store.retire(Epoch(1));
        let first = store.lookup(&key(1)).unwrap();
        // Used again, so that the other one is older.
        store.pin(first);
        assert_eq!(store.available(), 1);
        store.unpin(first);
        let next = store.reserve(Epoch(2)).unwrap().0;
        assert_ne!(next, first);
        assert_eq!((store.find(&key(1)), store.find(&key(2))), (Some(first), None));
        store.pin(first);
        assert_eq!(store.reserve(Epoch(2)), None, "one is pinned, the other on its way");
        store.check(&|_| 1);
    }

    #[test]
    fn withdrawn_names_free_their_blocks() {
        let mut store = HostStore::new(1);
        let block = store.reserve(Epoch(1)).unwrap().0;
        store.publish(block, &key(1));
        store.unpin(block);
        store.retire(Epoch(1));
        store.withdraw(&key(1).hash);
        assert_eq!((store.lookup(&key(1)), store.available(), store.counts().cached), (None, 1, 0));
        store.check(&|_| 0);
    }

    #[test]
    #[should_panic(expected = "released more often")]
    fn a_second_release_is_a_bug() {
        let mut store = HostStore::new(1);
        let block = store.reserve(Epoch(1)).unwrap().0;
        store.unpin(block);
        store.unpin(block);
    }
}
