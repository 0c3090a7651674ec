//! Where the pieces of a block lie: on the device one in the keys and one in the values of each layer; on the host all in one
//! block; in staging part by part, so that neighbours on the device stay neighbours and need one copy.

use crate::base::BlockId;
use crate::gpu::memory::Slice;
use std::ops::Range;

/// Keys or values of one layer.
pub(super) struct Part {
    pub(super) memory: Slice,
    /// Bytes of a block here,
    pub(super) bytes: u64,
    /// and in the parts before.
    pub(super) before: u64,
}

/// Neighbours in device memory that are neighbours in staging too: one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) block: BlockId,
    pub(super) at: u64,
    pub(super) count: u64,
}

/// For each part, where it lies in a block of the pool and where in staging for block number `at` of `count`.
pub(super) fn each_place(parts: &[Part], at: usize, count: usize, mut visit: impl FnMut(Range<usize>, Range<usize>)) {
    for part in parts {
        let (bytes, before) = (part.bytes as usize, part.before as usize);
        let place = before * count + at * bytes;
        visit(before..before + bytes, place..place + bytes);
    }
}

/// The fewest copies that bring `blocks`, in this order, to consecutive places.
pub(super) fn find_runs(blocks: impl Iterator<Item = BlockId>, runs: &mut Vec<Run>) {
    runs.clear();
    for (at, block) in (0..).zip(blocks) {
        match runs.last_mut() {
            Some(run) if u64::from(run.block.0) + run.count == u64::from(block.0) => run.count += 1,
            _ => runs.push(Run { block, at, count: 1 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_copy() {
        let runs = |blocks: &[u32]| {
            let mut runs = Vec::new();
            find_runs(blocks.iter().copied().map(BlockId), &mut runs);
            runs.iter().map(|run| (run.block.0, run.at, run.count)).collect::<Vec<_>>()
        };
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[4, 5, 6]), [(4, 0, 3)]);
        assert_eq!(runs(&[4, 5, 3, 4, 7, 7, 6]), [(4, 0, 2), (3, 2, 2), (7, 4, 1), (7, 5, 1), (6, 6, 1)]);
    }
}
