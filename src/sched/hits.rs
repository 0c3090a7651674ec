//! What a waiting sequence would find at admission, and what it would take: computed once, then carried out as it stands.

use super::blocks::{block_name, first_visible, hash_full_blocks};
use super::scheduler::Hit;
use super::sequence::Sequence;
use super::{Scheduler, sequence::SeqState};
use crate::base::{BLOCK_TOKENS, SeqId, ceil_div};

/// See the module. The hits are in `Scheduler::scratch`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    /// Leading blocks that slid out of the window before it was swapped out.
    pub first: usize,
    /// Leading tokens that need not be computed.
    pub cached_tokens: usize,
    /// Of these, tokens found by their content.
    pub hit_tokens: usize,
    /// Blocks to allocate beyond the hits.
    pub new_blocks: usize,
    /// Blocks that leave the free list: new ones, those to be filled from the host, the copy of a shared block, and hits that
    /// nobody holds.
    pub from_free: usize,
    /// One more if the first generated token would open another block. Checked, not taken, so that a sequence is not
    /// admitted only to be preempted in its first decode step.
    pub headroom: usize,
}

impl Scheduler {
    /// Fills `scratch.hits` for `seq`, which waits, and counts.
    pub(super) fn size_up(&mut self, seq: SeqId) -> Admission {
        let mut hits = std::mem::take(&mut self.scratch.hits);
        hits.clear();
        // A scored prompt needs the logits of every row, so it computes them all.
        let read_cache = self.config.prefix_cache && !self.sequence(seq).score;
        if read_cache {
            let Self { chain, sequences, .. } = self;
            hash_full_blocks(chain, sequences.get_mut(&seq).expect("waiting sequences exist"));
        }
        let sequence = self.sequence(seq);
        let (first, cached_tokens) = if self.share_prompt(sequence, &mut hits) {
            let cached_tokens = sequence.prompt_len - 1;
            (ceil_div(cached_tokens, BLOCK_TOKENS) - hits.len(), cached_tokens)
        } else {
            self.find_blocks(sequence, read_cache, &mut hits);
            let end = (sequence.slid + hits.len()) * BLOCK_TOKENS;
            // The last block of a swapped sequence may be partly filled.
            let own = matches!(hits.last(), Some(Hit::Own(_)));
            (sequence.slid, if own { end.min(sequence.computed) } else { end })
        };
        let known = sequence.tokens.len();
        let all_blocks = ceil_div(known, BLOCK_TOKENS);
        let new_blocks = all_blocks - first - hits.len();
        let count = |wanted: fn(&Hit) -> bool| hits.iter().filter(|hit| wanted(hit)).count();
        let loads = count(|hit| matches!(hit, Hit::Host(_) | Hit::Own(_)));
        let found = count(|hit| matches!(hit, Hit::Device(_) | Hit::Host(_)));
        let revived = hits.iter().filter(|hit| matches!(hit, Hit::Device(block) if self.pool.is_free(*block))).count();
        let shared_partly = matches!(hits.last(), Some(Hit::Shared(_))) && !cached_tokens.is_multiple_of(BLOCK_TOKENS);
        let with_next = ceil_div((known + 1).min(sequence.kv_limit()), BLOCK_TOKENS);
        let admission = Admission {
            first,
            cached_tokens,
            hit_tokens: (found * BLOCK_TOKENS).min(cached_tokens),
            new_blocks,
            from_free: new_blocks + loads + revived + usize::from(shared_partly),
            headroom: with_next.saturating_sub(all_blocks),
        };
        self.scratch.hits = hits;
        admission
    }

    /// Block by block: the device's prefix cache, where it was swapped to, the host's prefix cache. At least one token is
    /// left to compute: its logits are needed.
    fn find_blocks(&self, sequence: &Sequence, read_cache: bool, hits: &mut Vec<Hit>) {
        let full = (sequence.tokens.len() - 1) / BLOCK_TOKENS;
        let first = sequence.slid;
        let end = full.max(first + sequence.host.len());
        // Nothing can follow a block that was swapped out half filled.
        let partly = !sequence.computed.is_multiple_of(BLOCK_TOKENS);
        let last_own = sequence.host.last().filter(|_| partly).copied().map(Hit::Own);
        let mut over = false;
        hits.extend((first..end).map_while(|index| {
            if over {
                return None;
            }
            let name = (read_cache && index < full).then(|| block_name(sequence, index));
            let on_device = name.as_ref().and_then(|name| self.pool.lookup(&name.key())).map(Hit::Device);
            let own = || sequence.host.get(index - first).copied().map(Hit::Own);
            let on_host = || {
                let name = name.as_ref().filter(|_| self.config.host_cache)?;
                self.host.lookup(&name.key()).map(Hit::Host)
            };
            let hit = on_device.or_else(own).or_else(on_host);
            over = hit.is_some() && hit == last_own;
            hit
        }));
    }

    /// The blocks of the prompt that `sequence` shares, all but its last token, if the other one still has them. Then the
    /// last token is computed again, which gives the logits that the first own token is drawn from.
    fn share_prompt(&self, sequence: &Sequence, hits: &mut Vec<Hit>) -> bool {
        let Some(leader) = sequence.leader.and_then(|leader| self.sequences.get(&leader)) else { return false };
        let runs = matches!(leader.state, SeqState::Prefill(_) | SeqState::Decode(_));
        if !runs || sequence.score || leader.computed < leader.prompt_len || sequence.computed > 0 {
            return false;
        }
        let cached = sequence.prompt_len - 1;
        let first = match self.capacity.window {
            Some(window) => first_visible(cached, window as usize) / BLOCK_TOKENS,
            None => 0,
        };
        if leader.slid > first {
            return false;
        }
        let blocks = &leader.table[first..ceil_div(cached, BLOCK_TOKENS)];
        hits.extend(blocks.iter().map(|block| Hit::Shared(*block)));
        !hits.is_empty()
    }
}
