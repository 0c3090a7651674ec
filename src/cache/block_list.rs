//! Doubly linked lists threaded through one array of links, so that a block can leave from the middle in O(1).
//! A block is in at most one list at a time; the lists share the links.

use crate::base::BlockId;

/// No neighbour.
const NONE: BlockId = BlockId(u32::MAX);

/// Neighbours of each block.
#[derive(Clone, Debug)]
pub(super) struct Links(Vec<Link>);

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: BlockId,
    next: BlockId,
}

impl Links {
    pub fn new(block_count: usize) -> Self {
        Self(vec![Link { previous: NONE, next: NONE }; block_count])
    }
}

/// One list: head is taken first, tail was put in last.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockList {
    head: BlockId,
    tail: BlockId,
    len: usize,
}

impl BlockList {
    pub const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push_back(&mut self, links: &mut Links, block: BlockId) {
        links.0[block.index()] = Link { previous: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = block,
            tail => links.0[tail.index()].next = block,
        }
        self.tail = block;
        self.len += 1;
    }

    pub fn pop_front(&mut self, links: &mut Links) -> Option<BlockId> {
        let block = self.head;
        (block != NONE).then(|| {
            self.remove(links, block);
            block
        })
    }

    /// Takes `block` out; it must be in this list.
    pub fn remove(&mut self, links: &mut Links, block: BlockId) {
        let Link { previous, next } = links.0[block.index()];
        match previous {
            NONE => self.head = next,
            previous => links.0[previous.index()].next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => links.0[next.index()].previous = previous,
        }
        links.0[block.index()] = Link { previous: NONE, next: NONE };
        self.len -= 1;
    }

    /// Moves all of `other`, in order, behind the tail. O(1).
    pub fn append(&mut self, links: &mut Links, other: BlockList) {
        if other.len == 0 {
            return;
        }
        match self.tail {
            NONE => self.head = other.head,
            tail => {
                links.0[tail.index()].next = other.head;
                links.0[other.head.index()].previous = tail;
            }
        }
        self.tail = other.tail;
        self.len += other.len;
    }

    /// From head to tail.
    pub fn iter<'a>(&self, links: &'a Links) -> impl Iterator<Item = BlockId> + 'a {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let block = at;
            (block != NONE).then(|| {
                at = links.0[block.index()].next;
                block
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(list: &BlockList, links: &Links) -> Vec<u32> {
        list.iter(links).map(|block| block.0).collect()
    }

    #[test]
    fn blocks_leave_from_anywhere() {
        for (gone, rest) in [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
            let mut links = Links::new(3);
            let mut list = BlockList::EMPTY;
            (0..3).for_each(|id| list.push_back(&mut links, BlockId(id)));
            list.remove(&mut links, BlockId(gone));
            assert_eq!(ids(&list, &links), rest);
            list.push_back(&mut links, BlockId(gone));
            assert_eq!(ids(&list, &links), [rest[0], rest[1], gone]);
            assert_eq!(list.len(), 3);
        }
    }

    #[test]
    fn append_keeps_the_order_and_both_ends() {
        let mut links = Links::new(5);
        let (mut one, mut two) = (BlockList::EMPTY, BlockList::EMPTY);
        [3, 1].into_iter().for_each(|id| one.push_back(&mut links, BlockId(id)));
        [4, 0].into_iter().for_each(|id| two.push_back(&mut links, BlockId(id)));
        let mut all = BlockList::EMPTY;
        all.append(&mut links, one);
        all.append(&mut links, two);
        all.append(&mut links, BlockList::EMPTY);
        all.push_back(&mut links, BlockId(2));
        assert_eq!(ids(&all, &links), [3, 1, 4, 0, 2]);
        let order: Vec<_> = std::iter::from_fn(|| all.pop_front(&mut links)).map(|block| block.0).collect();
        assert_eq!(order, [3, 1, 4, 0, 2]);
        assert_eq!(all.len(), 0);
    }
}
