//! The block pool against a slow model that keeps plain lists: random calls, same answers, same order of reuse.

use octavo::base::{BlockId, Epoch, SeqId, TokenId};
use octavo::cache::{BlockCounts, BlockHash, BlockKey, BlockPool};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Call {
    Allocate,
    /// Looks a content up and shares what it finds.
    Share {
        content: u8,
    },
    /// Names the n-th held block.
    Publish {
        nth: usize,
        content: u8,
        publisher: u64,
    },
    /// Releases the n-th held block, last used so many epochs after the last retired one.
    Release {
        nth: usize,
        ahead: u64,
    },
    Retire {
        by: u64,
    },
    Withdraw {
        content: u8,
        publisher: u64,
    },
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        4 => Just(Call::Allocate),
        3 => (0..6u8).prop_map(|content| Call::Share { content }),
        3 => (0..16usize, 0..6u8, 0..3u64)
            .prop_map(|(nth, content, publisher)| Call::Publish { nth, content, publisher }),
        5 => (0..16usize, 0..4u64).prop_map(|(nth, ahead)| Call::Release { nth, ahead }),
        2 => (0..3u64).prop_map(|by| Call::Retire { by }),
        1 => (0..6u8, 0..3u64).prop_map(|(content, publisher)| Call::Withdraw { content, publisher }),
    ]
}

/// Tokens of a content; contents 0 and 3, 1 and 4, 2 and 5 have colliding hashes.
fn with_key<T>(content: u8, run: impl FnOnce(&BlockKey) -> T) -> T {
    let tokens = [TokenId::from(content); 16];
    run(&BlockKey { hash: BlockHash([content % 3; 32]), parent: None, tokens: &tokens })
}

/// The same rules, written for the reader.
#[derive(Default)]
struct Model {
    /// One entry for each holder.
    held: Vec<BlockId>,
    /// In the order of release: (ready once this epoch retired, block).
    pending: Vec<(u64, BlockId)>,
    free: Vec<BlockId>,
    last_use: BTreeMap<BlockId, u64>,
    /// By hash: (content, publisher, block).
    names: BTreeMap<u8, (u8, u64, BlockId)>,
    retired: u64,
}

impl Model {
    fn lookup(&self, content: u8) -> Option<BlockId> {
        let (named, _, block) = self.names.get(&(content % 3))?;
        (*named == content).then_some(*block)
    }

    fn allocate(&mut self) -> Option<BlockId> {
        if self.free.is_empty() {
            return None;
        }
        let block = self.free.remove(0);
        self.names.retain(|_, (_, _, named)| *named != block);
        self.held.push(block);
        Some(block)
    }

    fn share(&mut self, block: BlockId) {
        self.free.retain(|other| *other != block);
        self.pending.retain(|(_, other)| *other != block);
        self.held.push(block);
    }

    fn release(&mut self, at: usize, epoch: u64) -> BlockId {
        let block = self.held.remove(at);
        let last_use = self.last_use.entry(block).or_default();
        *last_use = epoch.max(*last_use);
        if !self.held.contains(&block) {
            match *last_use > self.retired {
                true => self.pending.push((*last_use, block)),
                false => self.free.push(block),
            }
        }
        block
    }

    fn retire(&mut self, epoch: u64) {
        self.retired = epoch;
        // Epoch by epoch, and within one in the order of release.
        self.pending.sort_by_key(|(epoch, _)| *epoch);
        while self.pending.first().is_some_and(|(ready, _)| *ready <= epoch) {
            self.free.push(self.pending.remove(0).1);
        }
    }
}

fn compare(block_count: usize, calls: &[Call]) {
    let mut pool = BlockPool::new(block_count);
    let mut model = Model { free: (0..block_count as u32).map(BlockId).collect(), ..Model::default() };
    for call in calls {
        match *call {
            Call::Allocate => assert_eq!(pool.allocate().map(|taken| taken.block), model.allocate()),
            Call::Share { content } => {
                let found = with_key(content, |key| pool.lookup(key));
                assert_eq!(found, model.lookup(content), "lookup of {content}");
                if let Some(block) = found {
                    pool.acquire(block);
                    model.share(block);
                }
            }
            Call::Publish { nth, content, publisher } if !model.held.is_empty() => {
                let block = model.held[nth % model.held.len()];
                let named = model.names.values().any(|(_, _, other)| *other == block);
                let free_name = !model.names.contains_key(&(content % 3)) && !named;
                assert_eq!(with_key(content, |key| pool.publish(block, key, SeqId(publisher))), free_name);
                if free_name {
                    model.names.insert(content % 3, (content, publisher, block));
                }
            }
            Call::Release { nth, ahead } if !model.held.is_empty() => {
                let epoch = model.retired + ahead;
                let block = model.release(nth % model.held.len(), epoch);
                pool.release(block, Epoch(epoch));
            }
            Call::Retire { by } => {
                let epoch = model.retired + by;
                model.retire(epoch);
                pool.retire(Epoch(epoch));
            }
            Call::Withdraw { content, publisher } => {
                pool.withdraw(&BlockHash([content % 3; 32]), SeqId(publisher));
                model.names.retain(|hash, (_, by, _)| *hash != content % 3 || *by != publisher);
            }
            Call::Publish { .. } | Call::Release { .. } => {}
        }
        pool.check();
        let held = (0..block_count as u32).filter(|id| model.held.contains(&BlockId(*id))).count();
        assert_eq!(pool.counts(), BlockCounts { held, pending: model.pending.len(), free: model.free.len() });
        for id in (0..block_count as u32).map(BlockId) {
            assert_eq!(pool.refs(id) as usize, model.held.iter().filter(|other| **other == id).count());
        }
        assert_eq!(pool.published_count(), model.names.len());
    }
    // What is left comes out in the model's order.
    while let Some(block) = model.allocate() {
        assert_eq!(pool.allocate().map(|taken| taken.block), Some(block));
    }
    assert_eq!(pool.allocate().map(|taken| taken.block), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_pool_does_what_plain_lists_would_do(
        block_count in 1..9usize,
        calls in prop::collection::vec(call(), 1..120),
    ) {
        compare(block_count, &calls);
    }
}
