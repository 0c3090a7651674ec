//! The invariants of the scheduler, for tests.

use super::Scheduler;
use super::plan::StepPlan;
use super::scheduler::waits;
use super::sequence::{Awaits, SeqState};
use crate::base::{BLOCK_TOKENS, SlotId, ceil_div};
use std::collections::HashMap;

impl Scheduler {
    /// Panics if an invariant is broken. O(blocks + tokens), so tests call it, and the engine does not.
    pub fn check(&self) {
        self.pool.check();
        let mut holders = HashMap::new();
        let mut host_holders = HashMap::new();
        let mut parked = 0;
        let mut slots = self.free_slots.clone();
        let mut queued = HashMap::new();
        let sequences = &self.sequences;
        for seq in self.waiting.iter(|seq| waits(sequences, seq)) {
            *queued.entry(seq).or_insert(0) += 1;
        }
        assert_eq!(queued.values().sum::<usize>(), self.waiting.len(), "length of the queue");
        for (id, sequence) in &self.sequences {
            assert_eq!(*id, sequence.id(), "sequence under a wrong id");
            let waits = queued.get(id).copied().unwrap_or(0);
            let runs = self.running.iter().filter(|other| other.seq == *id).count();
            let (total, computed) = (sequence.total(), sequence.computed);
            match sequence.state {
                SeqState::Waiting => {
                    assert_eq!((waits, runs), (1, 0), "places of waiting sequence {id}");
                    assert!(sequence.table.is_empty(), "waiting sequence {id} holds blocks");
                    let away = sequence.slid + sequence.host.len();
                    assert_eq!(away, ceil_div(computed, BLOCK_TOKENS), "swapped blocks of sequence {id}");
                }
                SeqState::Parked(awaits) => {
                    assert_eq!((waits, runs), (0, 0), "places of parked sequence {id}");
                    assert!(sequence.table.is_empty() && computed == 0, "parked sequence {id} holds blocks");
                    parked += 1;
                    if let Awaits::Leader(leader) = awaits {
                        assert!(self.followers[&leader].contains(id), "sequence {id} waits for {leader} unbeknown");
                        assert!(
                            self.sequences.contains_key(&leader),
                            "sequence {id} waits for {leader}, which is gone"
                        );
                    }
                }
                SeqState::Prefill(_) => {
                    assert_eq!((waits, runs), (0, 1), "places of running sequence {id}");
                    assert!(computed < sequence.tokens.len(), "sequence {id} has nothing to prefill");
                    assert_eq!(sequence.in_flight, 0, "sequence {id} samples before its prompt is done");
                }
                SeqState::Decode(_) => {
                    assert_eq!((waits, runs), (0, 1), "places of running sequence {id}");
                    let scored_only = sequence.limit == sequence.prompt_len;
                    assert_eq!(computed + usize::from(!scored_only), total, "KV of decoding sequence {id}");
                }
                SeqState::Done(reason) => panic!("sequence {id} has ended ({reason:?}) and is still here"),
            }
            assert!(total <= sequence.limit, "sequence {id} has {total} tokens, limit {}", sequence.limit);
            if sequence.slot().is_some() {
                assert!(computed <= sequence.table.len() * BLOCK_TOKENS, "sequence {id} computes without blocks");
                assert!(sequence.host.is_empty(), "running sequence {id} is on the host");
            }
            assert!(sequence.table.len() <= sequence.kv_limit().div_ceil(BLOCK_TOKENS), "sequence {id} hoards blocks");
            assert!(sequence.published <= sequence.table.len(), "sequence {id} published blocks it lacks");
            assert!(sequence.last_use <= self.last_epoch, "sequence {id} was used by a submission to come");
            slots.extend(sequence.slot());
            for block in sequence.held() {
                *holders.entry(*block).or_insert(0u32) += 1;
            }
            for block in &sequence.host {
                *host_holders.entry(*block).or_insert(0u32) += 1;
            }
        }
        for block in &self.loaded {
            *host_holders.entry(*block).or_insert(0) += 1;
        }
        self.host.check(&|block| host_holders.get(&block).copied().unwrap_or(0));
        let count =
            |holds: fn(&super::sequence::Sequence) -> bool| self.sequences.values().filter(|s| holds(s)).count();
        assert_eq!(count(|s| s.sampling.is_guided()), self.guided, "count of the guided");
        assert_eq!(count(|s| !s.ready), self.unready, "count of those without a mask");
        assert_eq!(parked, self.parked, "count of the parked");
        let placed = self.waiting.len() + self.running.len() + self.parked;
        assert_eq!(placed, self.sequences.len(), "queues name unknown sequences");
        assert!(self.running.is_sorted(), "the running are out of order");
        assert!(self.followers.values().flatten().all(|seq| self.sequences.contains_key(seq)), "a follower is gone");
        slots.sort_unstable();
        let all: Vec<SlotId> = (0..self.config.max_num_seqs as u32).map(SlotId).collect();
        assert_eq!(slots, all, "each slot is free or owned by one sequence");
        assert!(self.closed_slots.iter().all(|slot| self.free_slots.contains(slot)), "a slot in use is closed");
        for block in 0..self.pool.block_count() as u32 {
            let block = crate::base::BlockId(block);
            let holders = holders.get(&block).copied().unwrap_or(0);
            assert_eq!(self.pool.refs(block), holders, "holders of block {block}");
        }
        assert!(self.flights.len() <= self.config.max_in_flight, "too many submissions under way");
        assert!(self.flights.iter().is_sorted_by(|a, b| a.epoch.next() == b.epoch), "epochs under way have gaps");
        for sequence in self.sequences.values() {
            let rows = self.flights.iter().flat_map(|flight| &flight.rows);
            let expected: usize = rows.filter(|row| row.seq == sequence.id()).map(|row| row.expected).sum();
            assert_eq!(sequence.in_flight, expected, "tokens under way of sequence {}", sequence.id());
        }
    }

    /// Panics if `plan`, just scheduled, breaks a limit or writes where it must not.
    pub fn check_plan(&self, plan: &StepPlan) {
        let rows: usize = plan.prefill.iter().map(|chunk| chunk.len as usize).sum();
        assert_eq!(rows, plan.prefill_tokens.len(), "tokens of the chunks");
        assert!(plan.token_count() <= self.config.max_num_batched_tokens, "token budget");
        assert!(plan.prefill.len() + plan.decode.len() <= self.config.max_num_seqs, "rows");
        assert!(plan.steps >= 1 && plan.steps <= self.config.max_steps, "steps {}", plan.steps);
        assert!(plan.steps == 1 || plan.prefill.is_empty(), "several steps with a prompt among them");
        if self.config.long_prefill_token_threshold > 0 {
            let longest = plan.prefill.iter().map(|chunk| chunk.len as usize).max().unwrap_or(0);
            assert!(longest <= self.config.long_prefill_token_threshold, "chunk of {longest} tokens");
        }
        let chunks = plan.prefill.iter().map(|chunk| (chunk.seq, chunk.start as usize, chunk.len as usize));
        let decodes = plan.decode.iter().map(|row| (row.seq, row.position as usize, 0));
        let mut seen = Vec::new();
        for (seq, start, len) in chunks.chain(decodes) {
            assert!(!seen.contains(&seq), "sequence {seq} has two rows");
            seen.push(seq);
            let sequence = &self.sequences[&seq];
            let end = if len > 0 { start + len } else { sequence.computed };
            assert!(end <= sequence.kv_limit(), "sequence {seq} writes position {end}");
            assert!(sequence.slid <= start / BLOCK_TOKENS, "sequence {seq} writes to a block that slid away");
            for block in &sequence.table[start / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS)] {
                assert_eq!(self.pool.refs(*block), 1, "shared block {block} is written");
                assert!(!self.pool.is_published(*block), "cached block {block} is written");
            }
        }
    }
}
