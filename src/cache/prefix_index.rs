//! Finds full blocks by what they hold. Knows nothing of holders or free lists.
//!
//! Invariants: a hash names at most one block and a block has at most one hash; of two blocks with equal content the
//! first keeps the name. A hit is confirmed by comparing parent and tokens, so a collision costs a miss, never a
//! wrong answer.

use super::BlockHash;
use crate::base::{BLOCK_TOKENS, BlockId, SeqId, TokenId};
use rustc_hash::FxHashMap;

/// What a block is looked up by.
#[derive(Clone, Copy, Debug)]
pub struct BlockKey<'a> {
    /// Its name.
    pub hash: BlockHash,
    /// The block before it; `None` in front.
    pub parent: Option<BlockHash>,
    /// Its [`BLOCK_TOKENS`] tokens.
    pub tokens: &'a [TokenId],
}

/// The name of a block, as the index keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockName {
    /// See [`BlockKey::hash`].
    pub hash: BlockHash,
    /// See [`BlockKey::parent`].
    pub parent: Option<BlockHash>,
    /// See [`BlockKey::tokens`].
    pub tokens: [TokenId; BLOCK_TOKENS],
    /// Who filled it.
    pub publisher: SeqId,
}

impl BlockName {
    /// What finds it.
    pub fn key(&self) -> BlockKey<'_> {
        BlockKey { hash: self.hash, parent: self.parent, tokens: &self.tokens }
    }
}

/// Map from content to block.
#[derive(Clone, Debug)]
pub struct PrefixIndex {
    by_hash: FxHashMap<BlockHash, BlockId>,
    entries: Vec<Option<BlockName>>,
}

impl PrefixIndex {
    /// An empty index over `block_count` blocks. Allocates all it will ever need.
    pub fn new(block_count: usize) -> Self {
        Self {
            by_hash: FxHashMap::with_capacity_and_hasher(block_count, Default::default()),
            entries: vec![None; block_count],
        }
    }

    /// The block that holds exactly this content.
    pub fn lookup(&self, key: &BlockKey) -> Option<BlockId> {
        let block = *self.by_hash.get(&key.hash)?;
        let entry = self.entries[block.index()].as_ref()?;
        (entry.parent == key.parent && entry.tokens == key.tokens).then_some(block)
    }

    /// Names `block`. False if the name is taken or the block has one: both stay as they were.
    pub fn publish(&mut self, block: BlockId, key: &BlockKey, publisher: SeqId) -> bool {
        let Ok(tokens) = key.tokens.try_into() else { return false };
        if self.by_hash.contains_key(&key.hash) || self.entries[block.index()].is_some() {
            return false;
        }
        self.by_hash.insert(key.hash, block);
        self.entries[block.index()] = Some(BlockName { hash: key.hash, parent: key.parent, tokens, publisher });
        true
    }

    /// Takes the name of `block` away, before it is overwritten.
    pub fn forget(&mut self, block: BlockId) -> Option<BlockName> {
        let name = self.entries[block.index()].take()?;
        self.by_hash.remove(&name.hash);
        Some(name)
    }

    /// Takes the name `hash` away if `publisher` gave it, and says whether it did.
    pub fn withdraw(&mut self, hash: &BlockHash, publisher: SeqId) -> bool {
        let Some(&block) = self.by_hash.get(hash) else { return false };
        let own = self.entries[block.index()].as_ref().is_some_and(|entry| entry.publisher == publisher);
        own && self.forget(block).is_some()
    }

    /// Takes the name `hash` away, whoever gave it, and says from which block.
    pub(super) fn withdraw_any(&mut self, hash: &BlockHash) -> Option<BlockId> {
        let block = *self.by_hash.get(hash)?;
        self.forget(block);
        Some(block)
    }

    /// Takes all names away.
    pub fn clear(&mut self) {
        for block in std::mem::take(&mut self.by_hash).into_values() {
            self.entries[block.index()] = None;
        }
        self.by_hash.reserve(self.entries.len());
    }

    /// Whether `block` has a name.
    pub fn is_published(&self, block: BlockId) -> bool {
        self.entries[block.index()].is_some()
    }

    /// Named blocks.
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Whether nothing can be found.
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Panics unless map and entries mirror each other.
    pub(super) fn check(&self) {
        let mut named = 0;
        for (index, entry) in self.entries.iter().enumerate() {
            if let Some(entry) = entry {
                named += 1;
                assert_eq!(self.by_hash.get(&entry.hash), Some(&BlockId(index as u32)), "name of block {index}");
            }
        }
        assert_eq!(named, self.by_hash.len(), "names without a block");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: [TokenId; BLOCK_TOKENS] = [7; BLOCK_TOKENS];
    const OTHER: [TokenId; BLOCK_TOKENS] = [8; BLOCK_TOKENS];
    const NAME: BlockHash = BlockHash([1; 32]);

    fn key<'a>(parent: Option<BlockHash>, tokens: &'a [TokenId]) -> BlockKey<'a> {
        BlockKey { hash: NAME, parent, tokens }
    }

    #[test]
    fn a_collision_is_a_miss() {
        let mut index = PrefixIndex::new(2);
        assert!(index.publish(BlockId(1), &key(None, &TOKENS), SeqId(1)));
        assert_eq!(index.lookup(&key(None, &TOKENS)), Some(BlockId(1)));
        assert_eq!(index.lookup(&key(None, &OTHER)), None, "other tokens under the same hash");
        assert_eq!(index.lookup(&key(Some(BlockHash([2; 32])), &TOKENS)), None, "other parent under the same hash");
    }

    #[test]
    fn the_first_of_two_equal_blocks_keeps_the_name() {
        let mut index = PrefixIndex::new(2);
        assert!(index.publish(BlockId(0), &key(None, &TOKENS), SeqId(1)));
        assert!(!index.publish(BlockId(1), &key(None, &TOKENS), SeqId(2)));
        index.forget(BlockId(1));
        assert_eq!(index.lookup(&key(None, &TOKENS)), Some(BlockId(0)), "forgetting the copy leaves the original");
        index.check();
    }

    #[test]
    fn only_the_publisher_withdraws() {
        let mut index = PrefixIndex::new(1);
        index.publish(BlockId(0), &key(None, &TOKENS), SeqId(1));
        index.withdraw(&NAME, SeqId(2));
        assert_eq!(index.len(), 1);
        index.withdraw(&NAME, SeqId(1));
        assert!(index.is_empty());
        index.check();
    }
}
