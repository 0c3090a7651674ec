//! From the caller to a slot: what is refused at once, and when a waiting sequence may start.

use super::plan::{SlotInit, StepPlan, TableUpdate};
use super::sequence::{SeqState, Sequence, kv_positions};
use super::{NewSequence, SchedEvent, Scheduler};
use crate::base::{BLOCK_TOKENS, SeqId};
use crate::cache::{BlockKey, BlockPool, HashChain};
use crate::error::{Error, Result};

/// Why no more sequences were admitted in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Nobody waits.
    Empty,
    /// The head of the queue must wait for a slot or for blocks, and so does everybody behind it.
    Short,
    /// The head can start once this step's budget or a result under way is out of the way.
    Soon,
}

/// What an admission takes: computed once, then carried out as it stands. The hits are in `Scheduler::hits`.
#[derive(Clone, Copy, Debug)]
struct Admission {
    /// Leading tokens whose KV is cached.
    cached_tokens: usize,
    /// Blocks to allocate for the other known tokens.
    new_blocks: usize,
    /// Blocks that leave the free list: the new ones, and hits that nobody holds.
    from_free: usize,
    /// One more if the first generated token would open another block. Checked, not taken, so that a sequence is not
    /// admitted only to be preempted in its first decode step.
    headroom: usize,
}

impl Scheduler {
    /// Puts a sequence into the waiting queue.
    ///
    /// # Errors
    /// What can never run is refused now, with the limit: an empty prompt, unknown token ids, a prompt without room
    /// to generate, more tokens than the KV pool holds.
    pub fn add(&mut self, new: NewSequence, events: &mut Vec<SchedEvent>) -> Result<SeqId> {
        self.refuse(&new)?;
        let id = SeqId(self.next_seq);
        self.next_seq += 1;
        let sequence = Sequence::new(id, new, self.config.max_model_len);
        self.hits.reserve(sequence.table.capacity());
        self.sequences.insert(id, sequence);
        self.waiting.push_back(id);
        let (request, prompt_tokens) = (self.sequences[&id].request, self.sequences[&id].prompt_len as u32);
        events.push(SchedEvent::Arrived { seq: id, request, prompt_tokens });
        self.checked();
        Ok(id)
    }

    fn refuse(&self, new: &NewSequence) -> Result<()> {
        let (prompt_len, max_model_len) = (new.prompt.len(), self.config.max_model_len);
        if new.prompt.is_empty() {
            return Err(Error::config("the prompt has no tokens; give at least one"));
        }
        let vocab_size = self.capacity.vocab_size;
        if let Some(position) = new.prompt.iter().position(|token| *token >= vocab_size) {
            return Err(Error::config(format!(
                "token {} at position {position} is outside the vocabulary; ids go from 0 to {}",
                new.prompt[position],
                vocab_size.saturating_sub(1)
            )));
        }
        if new.max_tokens == 0 && !new.score {
            return Err(Error::config("max_tokens is 0, but must be at least 1"));
        }
        // A prompt that is only scored may fill the context to the last token.
        let room = if new.score { 0 } else { 1 };
        if prompt_len + room > max_model_len {
            return Err(Error::config(format!(
                "the prompt has {prompt_len} tokens, but the context holds {max_model_len}, the output included; \
                 shorten the prompt to {} or raise --max-model-len",
                max_model_len - room
            )));
        }
        let limit = prompt_len.saturating_add(new.max_tokens as usize).min(max_model_len);
        let (need, have) = (kv_positions(prompt_len, limit), self.pool.block_count() * BLOCK_TOKENS);
        if need.div_ceil(BLOCK_TOKENS) > self.pool.block_count() {
            return Err(Error::memory(format!(
                "{prompt_len} prompt tokens and up to {} generated ones need KV memory for {need} tokens, but all \
                 {} blocks together hold {have}; lower max_tokens, shorten the prompt or raise --num-kv-blocks",
                limit - prompt_len,
                self.pool.block_count()
            )));
        }
        Ok(())
    }

    /// Admits from the head of the queue while slots, blocks and `budget` last, and plans the first chunks.
    pub(super) fn admit(&mut self, plan: &mut StepPlan, budget: &mut usize, events: &mut Vec<SchedEvent>) -> Pause {
        loop {
            let Some(&id) = self.waiting.front() else { return Pause::Empty };
            let sequence = self.sequences.get_mut(&id).expect("waiting sequences exist");
            if sequence.in_flight > 0 {
                return Pause::Soon;
            }
            if self.free_slots.is_empty() {
                return Pause::Short;
            }
            if *budget == 0 {
                return Pause::Soon;
            }
            // A scored prompt needs the logits of every row, so it computes them all.
            let read_cache = self.config.prefix_cache && !sequence.score;
            self.hits.clear();
            if read_cache {
                hash_full_blocks(&mut self.chain, sequence);
                find_hits(&self.pool, sequence, &mut self.hits);
            }
            let admission = size_up(&self.pool, sequence, &self.hits);
            let (need, counts) = (admission.from_free + admission.headroom, self.pool.counts());
            if need > counts.free {
                return if need > counts.free + counts.pending { Pause::Short } else { Pause::Soon };
            }
            if !self.config.chunked_prefill && sequence.tokens.len() - admission.cached_tokens > *budget {
                return Pause::Soon;
            }
            if read_cache {
                self.totals.prefix_queries += sequence.tokens.len() as u64;
                self.totals.prefix_hits += admission.cached_tokens as u64;
            }
            self.waiting.pop_front();
            self.start(id, admission, plan);
            let blocks = self.sequences[&id].table.len() as u32;
            events.push(SchedEvent::Admitted {
                seq: id,
                cached_tokens: admission.cached_tokens,
                host_tokens: 0,
                blocks,
            });
            *budget -= self.plan_chunk(id, plan, *budget);
        }
    }

    /// Gives a sequence its slot and blocks.
    fn start(&mut self, id: SeqId, admission: Admission, plan: &mut StepPlan) {
        let slot = self.free_slots.pop().expect("a free slot was checked for");
        // Taken over before the runner heard that it was closed: the new owner resets it anyway.
        self.closed_slots.retain(|closed| *closed != slot);
        let sequence = self.sequences.get_mut(&id).expect("waiting sequences exist");
        for block in &self.hits {
            self.pool.acquire(*block);
            sequence.table.push(*block);
        }
        for _ in 0..admission.new_blocks {
            sequence.table.push(self.pool.allocate().expect("free blocks were counted"));
        }
        sequence.state = SeqState::Prefill(slot);
        sequence.computed = admission.cached_tokens;
        sequence.published = self.hits.len();
        let position_limit = sequence.limit as u32;
        plan.new_slots.push(SlotInit { slot, seq: id, sampling: sequence.sampling, position_limit });
        let table = sequence.table.iter().enumerate();
        plan.table_updates.extend(table.map(|(index, block)| TableUpdate { slot, index: index as u32, block: *block }));
        self.running.push(id);
    }
}

/// Extends `hashes` to all full blocks of the known tokens.
pub(super) fn hash_full_blocks(chain: &mut HashChain, sequence: &mut Sequence) {
    let Sequence { tokens, hashes, salt, .. } = sequence;
    for block in tokens.chunks_exact(BLOCK_TOKENS).skip(hashes.len()) {
        hashes.push(chain.next(hashes.last().copied(), block, salt.as_deref()));
    }
}

/// The cached blocks that `sequence` starts with. At least one token is left to compute: its logits are needed.
fn find_hits(pool: &BlockPool, sequence: &Sequence, hits: &mut Vec<crate::base::BlockId>) {
    let most = (sequence.tokens.len() - 1) / BLOCK_TOKENS;
    hits.extend((0..most).map_while(|index| pool.lookup(&block_key(sequence, index))));
}

/// Names full block `index`, whose hash is known.
pub(super) fn block_key(sequence: &Sequence, index: usize) -> BlockKey<'_> {
    BlockKey {
        hash: sequence.hashes[index],
        parent: index.checked_sub(1).map(|before| sequence.hashes[before]),
        tokens: &sequence.tokens[index * BLOCK_TOKENS..][..BLOCK_TOKENS],
    }
}

fn size_up(pool: &BlockPool, sequence: &Sequence, hits: &[crate::base::BlockId]) -> Admission {
    let known = sequence.tokens.len();
    let all_blocks = known.div_ceil(BLOCK_TOKENS);
    let new_blocks = all_blocks - hits.len();
    let revived = hits.iter().filter(|block| pool.is_free(**block)).count();
    let with_next = (known + 1).min(sequence.kv_limit()).div_ceil(BLOCK_TOKENS);
    Admission {
        cached_tokens: hits.len() * BLOCK_TOKENS,
        new_blocks,
        from_free: new_blocks + revived,
        headroom: with_next.saturating_sub(all_blocks),
    }
}
