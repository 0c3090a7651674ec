//! The waiting queue: a heap by urgency, from which sequences may also vanish.

use crate::base::SeqId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What orders sequences, in the queue and among the running: smaller first. The id breaks ties in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Urgency {
    /// By policy; the same for all under first come, first served.
    pub rank: i64,
    pub seq: SeqId,
}

/// Who waits. Adding, taking the first and giving one up take O(log n) amortised, so that a hundred thousand may wait.
///
/// A sequence that gives up leaves its entry behind; entries without a sequence are skipped, and swept out once they are
/// the majority.
#[derive(Debug, Default)]
pub(super) struct WaitingQueue {
    heap: BinaryHeap<Reverse<Urgency>>,
    /// Entries whose sequence has given up.
    stale: usize,
}

impl WaitingQueue {
    pub fn len(&self) -> usize {
        self.heap.len() - self.stale
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn push(&mut self, urgency: Urgency) {
        self.heap.push(Reverse(urgency));
    }

    /// The most urgent one, which stays; `waits` tells whether a sequence is still to be found here.
    pub fn peek(&mut self, waits: impl Fn(SeqId) -> bool) -> Option<Urgency> {
        while let Some(Reverse(urgency)) = self.heap.peek() {
            if waits(urgency.seq) {
                return Some(*urgency);
            }
            self.heap.pop();
            self.stale -= 1;
        }
        None
    }

    /// Takes the one that [`peek`](Self::peek) just showed.
    pub fn pop(&mut self) -> Option<Urgency> {
        self.heap.pop().map(|Reverse(urgency)| urgency)
    }

    /// One of those here gives up.
    pub fn give_up(&mut self, waits: impl Fn(SeqId) -> bool) {
        self.stale += 1;
        if self.stale > 64 && self.stale * 2 > self.heap.len() {
            self.heap.retain(|Reverse(urgency)| waits(urgency.seq));
            self.stale = 0;
        }
    }

    /// All that wait, in no order.
    pub fn iter(&self, waits: impl Fn(SeqId) -> bool) -> impl Iterator<Item = SeqId> {
        self.heap.iter().map(|Reverse(urgency)| urgency.seq).filter(move |seq| waits(*seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_most_urgent_comes_first_and_ties_keep_their_order() {
        let mut queue = WaitingQueue::default();
        for (rank, seq) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            queue.push(Urgency { rank, seq: SeqId(seq) });
        }
        let order: Vec<u64> = std::iter::from_fn(|| {
            queue.peek(|_| true)?;
            queue.pop().map(|urgency| urgency.seq.0)
        })
        .collect();
        assert_eq!(order, [1, 3, 0, 2]);
    }

    #[test]
    fn those_who_gave_up_are_gone_and_do_not_pile_up() {
        let mut queue = WaitingQueue::default();
        let mut there: HashSet<SeqId> = (0..1000).map(SeqId).collect();
        there.iter().for_each(|seq| queue.push(Urgency { rank: 0, seq: *seq }));
        for gone in (0..1000).filter(|id| id % 10 != 7).map(SeqId) {
            there.remove(&gone);
            queue.give_up(|seq| there.contains(&seq));
        }
        assert_eq!(queue.len(), 100);
        assert!(queue.heap.len() <= 2 * 100 + 64, "{}", queue.heap.len());
        for expected in (0..1000).filter(|id| id % 10 == 7) {
            assert_eq!(queue.peek(|seq| there.contains(&seq)).map(|urgency| urgency.seq.0), Some(expected));
            queue.pop();
        }
        assert!(queue.is_empty());
    }
}
