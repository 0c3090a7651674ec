//! From the caller to a slot: what is refused at once, and when a waiting sequence may start.

use super::hits::Admission;
use super::plan::{BlockLoad, SlotInit, StepPlan, TableUpdate};
use super::queue::Urgency;
use super::scheduler::{Hit, release_blocks, waits};
use super::sequence::{Awaits, SeqState, Sequence, kv_positions};
use super::{NewSequence, Pause, Policy, SchedEvent, Scheduler};
use crate::base::{BLOCK_TOKENS, BlockId, SeqId};
use crate::error::{Error, Result};

/// Why no more sequences were admitted in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Nobody waits.
    Empty,
    /// The head of the queue must wait for a slot or for blocks, and so does everybody behind it.
    Short,
    /// The head can start once this step's budget or a result under way is out of the way.
    Soon,
}

/// Prompts partly computed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Partial {
    pub all: usize,
    /// Of these, above the threshold.
    pub long: usize,
}

/// Long prompts that shorter ones may pass in one step.
const MOST_PASSED: usize = 32;

impl Scheduler {
    /// Puts a sequence into the waiting queue.
    ///
    /// # Errors
    /// What can never run is refused now, with the limit: an empty prompt, unknown token ids, a prompt without room
    /// to generate, more tokens than the KV pool holds, an empty salt, a fork of another prompt.
    pub fn add(&mut self, new: NewSequence, events: &mut Vec<SchedEvent>) -> Result<SeqId> {
        self.refuse(&new)?;
        self.stuck = false;
        let id = SeqId(self.next_seq);
        self.next_seq += 1;
        let (rank, held) = (self.rank(&new), new.held);
        let mut sequence = Sequence::new(Urgency { rank, seq: id }, new, self.config.max_model_len);
        let leader = sequence.leader.and_then(|leader| self.sequences.get(&leader));
        sequence.state = match leader {
            _ if held => SeqState::Parked(Awaits::Caller),
            Some(leader) if leader.computed < leader.prompt_len => SeqState::Parked(Awaits::Leader(leader.id())),
            _ => SeqState::Waiting,
        };
        match sequence.state {
            SeqState::Waiting => self.waiting.push(sequence.urgency),
            SeqState::Parked(Awaits::Leader(leader)) => {
                self.followers.entry(leader).or_default().push(id);
                self.parked += 1;
            }
            _ => self.parked += 1,
        }
        let (request, prompt_tokens) = (sequence.request, sequence.prompt_len as u32);
        self.guided += usize::from(sequence.sampling.is_guided());
        self.sequences.insert(id, sequence);
        events.push(SchedEvent::Arrived { seq: id, request, prompt_tokens });
        self.checked();
        Ok(id)
    }

    /// The place in the order of the policy. Fixed at arrival, so that the queue needs no sorting anew: that waiting makes
    /// a request more urgent is the same as that later ones are less urgent.
    fn rank(&self, new: &NewSequence) -> i64 {
        let micros = |micros: u64| i64::try_from(micros).unwrap_or(i64::MAX);
        match self.config.policy {
            Policy::Fcfs | Policy::PhaseSplit => 0,
            Policy::Priority => {
                let ahead = i64::from(new.priority).saturating_mul(micros(self.config.aging_micros));
                micros(new.arrival_micros).saturating_add(ahead)
            }
            Policy::Edf => {
                let assumed = new.arrival_micros.saturating_add(self.config.deadline_micros);
                micros(new.deadline_micros.unwrap_or(assumed))
            }
        }
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
        let (asked, room) = (Self::entries_asked(new, vocab_size), u64::from(self.capacity.logprob_entries));
        if asked > room {
            return Err(Error::config(format!(
                "logprobs and prompt_logprobs ask for {asked} log-probabilities a token, but the device reports at most {room} \
                 at once; ask for fewer"
            )));
        }
        if new.max_tokens == 0 && !new.score {
            return Err(Error::config("max_tokens is 0, but must be at least 1"));
        }
        if new.cache_salt.as_deref() == Some("") {
            return Err(Error::config("cache_salt is empty, which would share with everybody; leave it out for that"));
        }
        if let Some(deadline) = new.deadline_micros.filter(|deadline| *deadline < new.arrival_micros) {
            return Err(Error::config(format!(
                "the deadline is {} ms before the arrival; give one in the future",
                (new.arrival_micros - deadline).div_ceil(1000)
            )));
        }
        if let Some(leader) = new.fork_of.and_then(|leader| self.sequences.get(&leader))
            && (leader.tokens[..leader.prompt_len] != new.prompt[..] || leader.salt != new.cache_salt)
        {
            return Err(Error::config(format!("a fork of sequence {} must have its prompt and salt", leader.id())));
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
    pub(super) fn admit(
        &mut self,
        plan: &mut StepPlan,
        budget: &mut usize,
        partial: &mut Partial,
        events: &mut Vec<SchedEvent>,
    ) -> Stop {
        if self.pause != Pause::None {
            return Stop::Empty;
        }
        let mut passed = std::mem::take(&mut self.scratch.skipped);
        let stop = loop {
            let sequences = &self.sequences;
            let Some(Urgency { seq, .. }) = self.waiting.peek(|seq| waits(sequences, seq)) else { break Stop::Empty };
            let sequence = self.sequence(seq);
            let on_its_way = !sequence.host.iter().all(|block| self.host.is_ready(*block));
            if on_its_way && self.flights.is_empty() && self.running.is_empty() {
                // Its saves wait for a submission, and nobody else is left to make one: it computes its KV again.
                let Self { pool, host, sequences, .. } = self;
                let sequence = sequences.get_mut(&seq).expect("waiting sequences exist");
                release_blocks(pool, host, sequence);
                sequence.computed = 0;
                continue;
            }
            // A scored prompt that is computed to its end waits for that result alone.
            let only_result = sequence.computed == sequence.tokens.len();
            // Nor does it start before it can compute to its last token.
            let entries = self.score_entries(sequence) + self.sample_entries(sequence);
            let unfit = !sequence.ready || entries > self.logprob_room_for(sequence.urgency);
            if sequence.in_flight > 0 || on_its_way || only_result || unfit {
                break Stop::Soon;
            }
            // What it would share with its leader is computed by this very plan, as after a lost device: it is there for the next.
            if sequence.leader.is_some_and(|leader| plan.prefill.iter().any(|chunk| chunk.seq == leader)) {
                break Stop::Soon;
            }
            if self.free_slots.is_empty() {
                break Stop::Short;
            }
            if *budget == 0 {
                break Stop::Soon;
            }
            let admission = self.size_up(seq);
            let known = self.sequence(seq).tokens.len() - admission.cached_tokens;
            let long = self.is_long(self.sequence(seq).tokens.len());
            if known > self.chunk_limit().min(*budget) {
                // It would be left partly computed.
                if !self.config.chunked_prefill || partial.all >= self.config.max_num_partial_prefills {
                    break Stop::Soon;
                }
                if long && partial.long >= self.config.max_long_partial_prefills {
                    if passed.len() == MOST_PASSED {
                        break Stop::Soon;
                    }
                    passed.extend(self.waiting.pop());
                    continue;
                }
                partial.all += 1;
                partial.long += usize::from(long);
            }
            let reserve = if self.running.is_empty() { 0 } else { self.watermark_blocks() };
            let (need, counts) = (admission.from_free + admission.headroom + reserve, self.pool.counts());
            if need > counts.free {
                break if need > counts.free + counts.pending { Stop::Short } else { Stop::Soon };
            }
            self.waiting.pop();
            self.start(seq, admission, plan, events);
            *budget -= self.plan_chunk(seq, plan, *budget, events);
        };
        passed.drain(..).for_each(|urgency| self.waiting.push(urgency));
        self.scratch.skipped = passed;
        stop
    }

    /// Most prompt tokens of one sequence in a step.
    pub(super) fn chunk_limit(&self) -> usize {
        match self.config.long_prefill_token_threshold {
            0 => usize::MAX,
            threshold => threshold,
        }
    }

    pub(super) fn is_long(&self, prompt_len: usize) -> bool {
        prompt_len > self.chunk_limit()
    }

    fn watermark_blocks(&self) -> usize {
        (f64::from(self.config.watermark) * self.pool.block_count() as f64).ceil() as usize
    }

    /// Gives a sequence its slot and blocks; what they hold already is in `scratch.hits`.
    fn start(&mut self, seq: SeqId, admission: Admission, plan: &mut StepPlan, events: &mut Vec<SchedEvent>) {
        let slot = self.free_slots.pop().expect("a free slot was checked for");
        // Taken over before the runner heard that it was closed: the new owner resets it anyway.
        self.closed_slots.retain(|closed| *closed != slot);
        let hits = std::mem::take(&mut self.scratch.hits);
        // First everything that is there is held, so that what is taken next evicts none of it.
        for hit in &hits {
            match *hit {
                Hit::Device(block) => self.pool.acquire(block),
                Hit::Shared(block) => self.pool.share(block),
                Hit::Host(block) => self.host.pin(block),
                Hit::Own(_) => {}
            }
        }
        let mut sequence = self.sequences.remove(&seq).expect("waiting sequences exist");
        sequence.reserve();
        sequence.slid = admission.first;
        // Nobody reads or releases the entries before.
        sequence.table.resize(admission.first, BlockId(u32::MAX));
        let mut returned = 0;
        for hit in &hits {
            let block = match *hit {
                Hit::Device(block) | Hit::Shared(block) => block,
                Hit::Host(host) | Hit::Own(host) => {
                    let block = self.take_block(events);
                    plan.loads.push(BlockLoad { host, block });
                    self.loaded.push(host);
                    returned += 1;
                    block
                }
            };
            sequence.table.push(block);
        }
        self.totals.swaps_in += u64::from(!sequence.host.is_empty());
        for (host, hit) in sequence.host.drain(..).zip(&hits) {
            // The others are unpinned after the load.
            if *hit != Hit::Own(host) {
                self.host.unpin(host);
            }
        }
        for _ in 0..admission.new_blocks {
            let block = self.take_block(events);
            sequence.table.push(block);
        }
        sequence.leader = None;
        // The plan that is being made fills its blocks, and some may slide out of the window before it is launched.
        sequence.last_use = self.last_epoch.next();
        sequence.state = SeqState::Prefill(slot);
        sequence.computed = admission.cached_tokens;
        sequence.published = admission.first + hits.iter().take_while(|hit| matches!(hit, Hit::Device(_))).count();
        let (sampling, position_limit) = (sequence.sampling, sequence.limit as u32);
        let history_len = if sampling.keeps_history() { sequence.computed } else { 0 };
        plan.history_tokens.extend_from_slice(&sequence.tokens[..history_len]);
        plan.new_slots.push(SlotInit {
            slot,
            seq,
            sampling,
            lists: sequence.lists.clone(),
            prompt_len: sequence.prompt_len as u32,
            history_len: history_len as u32,
            position_limit,
        });
        let table = sequence.table.iter().enumerate().skip(admission.first);
        plan.table_updates.extend(table.map(|(index, block)| TableUpdate { slot, index: index as u32, block: *block }));
        if self.config.prefix_cache && !sequence.score {
            let from_host = hits.iter().filter(|hit| matches!(hit, Hit::Host(_))).count();
            self.totals.prefix_queries += sequence.tokens.len() as u64;
            self.totals.prefix_hits += admission.hit_tokens as u64;
            self.totals.host_hits += (from_host * BLOCK_TOKENS) as u64;
        }
        events.push(SchedEvent::Admitted {
            seq,
            cached_tokens: admission.cached_tokens,
            host_tokens: (returned * BLOCK_TOKENS).min(admission.cached_tokens),
            blocks: sequence.held().len() as u32,
        });
        let urgency = sequence.urgency;
        self.sequences.insert(seq, sequence);
        let at = self.running.partition_point(|other| *other < urgency);
        self.running.insert(at, urgency);
        self.scratch.hits = hits;
    }
}
