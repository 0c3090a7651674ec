//! What must hold of the events, kept in a second set of books: each sequence arrives, is admitted, perhaps preempted and
//! admitted again, and ends once; its tokens are those that it yields alone; nobody overtakes who is more urgent.

use crate::base::{SeqId, TokenId};
use crate::runner::mock::MockOptions;
use crate::sched::plan::StepPlan;
use crate::sched::{FinishReason, NewSequence, Policy, PreemptReason, Released, SchedEvent, SchedulerConfig};
use std::collections::{BTreeMap, BTreeSet};

/// Why a book does not balance.
pub type Fault = String;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Waiting,
    Running,
    Ended,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    /// Smaller goes first.
    rank: i128,
    prompt_len: usize,
    tokens: Vec<TokenId>,
    expected: Vec<TokenId>,
    end: FinishReason,
    /// Log-probabilities that have come, and how many must.
    scores: Vec<(u32, f64)>,
    expected_scores: Vec<(u32, f64)>,
    admissions: u32,
    preemptions: u32,
    /// May be overtaken: it shares another one's prompt, is held back, or is longer than chunks may be.
    special: bool,
    cancelled: bool,
}

/// Sums over events and plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Sequences that arrived.
    pub sequences: u64,
    /// Of these, sharing the prompt of another.
    pub forks: u64,
    /// Tokens that came.
    pub tokens: u64,
    /// Plans submitted.
    pub submissions: u64,
    /// Steps in them.
    pub device_steps: u64,
    /// Prompt tokens in them.
    pub prefill_tokens: u64,
    /// Sequences that lost their slot to others.
    pub preemptions: u64,
    /// Of these, moved to the host.
    pub swaps: u64,
    /// Blocks saved to the host.
    pub saves: u64,
    /// Blocks loaded from the host.
    pub loads: u64,
    /// Blocks copied before a write.
    pub copies: u64,
    /// Tokens found cached at admission.
    pub hit_tokens: u64,
    /// Of these, brought back from the host.
    pub host_tokens: u64,
    /// Cached blocks that gave way.
    pub evictions: u64,
    /// Sequences that the caller ended.
    pub cancels: u64,
    /// Devices lost.
    pub losses: u64,
    /// Resets of the prefix cache that were carried out.
    pub resets: u64,
    /// Pauses.
    pub pauses: u64,
    /// Tokens that needed no sampling.
    pub appended: u64,
}

impl Tally {
    /// Adds the sums of another run.
    pub fn add(&mut self, other: &Self) {
        let pairs: [(&mut u64, u64); 19] = [
            (&mut self.sequences, other.sequences),
            (&mut self.forks, other.forks),
            (&mut self.tokens, other.tokens),
            (&mut self.submissions, other.submissions),
            (&mut self.device_steps, other.device_steps),
            (&mut self.prefill_tokens, other.prefill_tokens),
            (&mut self.preemptions, other.preemptions),
            (&mut self.swaps, other.swaps),
            (&mut self.saves, other.saves),
            (&mut self.loads, other.loads),
            (&mut self.copies, other.copies),
            (&mut self.hit_tokens, other.hit_tokens),
            (&mut self.host_tokens, other.host_tokens),
            (&mut self.evictions, other.evictions),
            (&mut self.cancels, other.cancels),
            (&mut self.losses, other.losses),
            (&mut self.resets, other.resets),
            (&mut self.pauses, other.pauses),
            (&mut self.appended, other.appended),
        ];
        for (sum, more) in pairs {
            *sum += more;
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    config: SchedulerConfig,
    entries: BTreeMap<SeqId, Entry>,
    /// Accepted, but not yet announced by an event.
    announced: BTreeSet<SeqId>,
    /// The sums.
    pub tally: Tally,
}

impl Ledger {
    /// Empty books for a scheduler of this configuration.
    pub fn new(config: SchedulerConfig) -> Self {
        Self { config, entries: BTreeMap::new(), announced: BTreeSet::new(), tally: Tally::default() }
    }

    /// A sequence was accepted. Works out what it must yield.
    pub fn accept(&mut self, seq: SeqId, new: &NewSequence, options: &MockOptions) -> Result<(), Fault> {
        let limit = (new.prompt.len() + new.max_tokens as usize).min(self.config.max_model_len);
        let expected = options.continuation(&new.prompt, &new.sampling, &new.stop_tokens, limit);
        let end = match expected.last() {
            Some(last) if new.stop_tokens.contains(last) => FinishReason::Stop,
            _ if new.prompt.len() + expected.len() == limit => FinishReason::Length,
            _ => FinishReason::Error,
        };
        let scored = if new.score { 1..new.prompt.len() } else { 0..0 };
        let rank = match self.config.policy {
            Policy::Fcfs | Policy::PhaseSplit => 0,
            Policy::Priority => {
                i128::from(new.arrival_micros) + i128::from(new.priority) * i128::from(self.config.aging_micros)
            }
            Policy::Edf => {
                let due = new.arrival_micros.saturating_add(self.config.deadline_micros);
                i128::from(new.deadline_micros.unwrap_or(due))
            }
        };
        let threshold = self.config.long_prefill_token_threshold;
        let entry = Entry {
            place: Place::Waiting,
            rank,
            prompt_len: new.prompt.len(),
            tokens: Vec::with_capacity(expected.len()),
            expected,
            end,
            scores: Vec::new(),
            expected_scores: scored.map(|at| (at as u32, MockOptions::logprob(new.prompt[at]))).collect(),
            admissions: 0,
            preemptions: 0,
            special: new.fork_of.is_some() || new.held || threshold > 0 && new.prompt.len() > threshold,
            cancelled: false,
        };
        self.tally.sequences += 1;
        self.tally.forks += u64::from(new.fork_of.is_some());
        self.announced.insert(seq);
        match self.entries.insert(seq, entry) {
            None => Ok(()),
            Some(_) => Err(format!("sequence {seq} was handed out twice")),
        }
    }

    /// The caller ended a sequence: nothing of it may come from now on.
    pub fn cancel(&mut self, seq: SeqId) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        if entry.place != Place::Ended {
            entry.place = Place::Ended;
            entry.cancelled = true;
            self.tally.cancels += 1;
        }
    }

    /// What a live sequence will yield after what has come.
    pub fn yet_to_come(&self, seq: SeqId) -> &[TokenId] {
        let live = self.entries.get(&seq).filter(|entry| entry.place != Place::Ended);
        live.map_or(&[], |entry| &entry.expected[entry.tokens.len()..])
    }

    /// Live sequences, in the order of arrival.
    pub fn live(&self) -> impl Iterator<Item = SeqId> {
        self.entries.iter().filter(|(_, entry)| entry.place != Place::Ended).map(|(seq, _)| *seq)
    }

    /// Everything was requeued: nobody runs any more.
    pub fn requeued(&self) -> Result<(), Fault> {
        match self.entries.iter().find(|(_, entry)| entry.place == Place::Running) {
            Some((seq, _)) => Err(format!("sequence {seq} still runs on a lost device")),
            None => Ok(()),
        }
    }

    /// Books the events of one call.
    pub fn take(&mut self, events: &[SchedEvent]) -> Result<(), Fault> {
        let mut made_room = None;
        for event in events {
            self.take_one(event).map_err(|fault| format!("{fault} ({event:?})"))?;
            match event {
                SchedEvent::Preempted { seq, reason: PreemptReason::NoBlock { .. }, .. } => made_room = Some(*seq),
                SchedEvent::Admitted { seq, .. } => {
                    if let Some(victim) = made_room {
                        return Err(format!("sequence {seq} is admitted in a step that preempted {victim}"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn live_entry(&mut self, seq: SeqId, place: Option<Place>) -> Result<&mut Entry, Fault> {
        let entry = self.entries.get_mut(&seq).ok_or_else(|| format!("sequence {seq} is unknown"))?;
        match (entry.place, place) {
            (Place::Ended, _) => Err(format!("sequence {seq} has ended")),
            (is, Some(wanted)) if is != wanted => Err(format!("sequence {seq} is {is:?}")),
            _ => Ok(entry),
        }
    }

    fn take_one(&mut self, event: &SchedEvent) -> Result<(), Fault> {
        match *event {
            SchedEvent::Arrived { seq, prompt_tokens, .. } => {
                let entry = self.live_entry(seq, Some(Place::Waiting))?;
                if entry.prompt_len != prompt_tokens as usize {
                    return Err(format!("a prompt of {} tokens", entry.prompt_len));
                }
                if !self.announced.remove(&seq) {
                    return Err(format!("sequence {seq} arrives twice"));
                }
            }
            SchedEvent::Admitted { seq, cached_tokens, host_tokens, .. } => {
                let entry = self.live_entry(seq, Some(Place::Waiting))?;
                if cached_tokens > entry.prompt_len + entry.tokens.len() || host_tokens > cached_tokens {
                    return Err("more cached tokens than there are".into());
                }
                entry.place = Place::Running;
                entry.admissions += 1;
                let rank = (entry.rank, seq);
                self.tally.hit_tokens += cached_tokens as u64;
                self.tally.host_tokens += host_tokens as u64;
                let passed = self.entries.iter().find(|(other, entry)| {
                    entry.place == Place::Waiting
                        && !entry.special
                        && entry.preemptions == 0
                        && (entry.rank, **other) < rank
                });
                if let Some((other, _)) = passed {
                    return Err(format!("sequence {seq} overtakes {other}, which is more urgent"));
                }
            }
            SchedEvent::Preempted { seq, reason, how, .. } => {
                let entry = self.live_entry(seq, Some(Place::Running))?;
                entry.place = Place::Waiting;
                entry.preemptions += 1;
                let rank = (entry.rank, seq);
                self.tally.preemptions += u64::from(reason != PreemptReason::DeviceLost);
                self.tally.swaps += u64::from(matches!(how, Released::Swapped { .. }));
                if let PreemptReason::NoBlock { wanted_by } = reason {
                    let spared = self.entries.iter().find(|(other, entry)| {
                        entry.place == Place::Running && (entry.rank, **other) > rank && **other != wanted_by
                    });
                    if let Some((other, _)) = spared {
                        return Err(format!("sequence {seq} gives way, though {other} is less urgent"));
                    }
                }
            }
            SchedEvent::Chunk { seq, start, len } => {
                let entry = self.live_entry(seq, Some(Place::Running))?;
                if len == 0 || (start + len) as usize > entry.prompt_len + entry.tokens.len() {
                    return Err(format!("a chunk of {} known tokens", entry.prompt_len + entry.tokens.len()));
                }
            }
            SchedEvent::Decode { seq, .. } | SchedEvent::Copied { seq, .. } => {
                self.live_entry(seq, Some(Place::Running))?;
                self.tally.copies += u64::from(matches!(event, SchedEvent::Copied { .. }));
            }
            SchedEvent::Token { seq, token, .. } => {
                let entry = self.live_entry(seq, None)?;
                let at = entry.tokens.len();
                if entry.expected.get(at) != Some(&token) {
                    return Err(format!("token {at} of sequence {seq} should be {:?}", entry.expected.get(at)));
                }
                entry.tokens.push(token);
                self.tally.tokens += 1;
            }
            SchedEvent::Score { seq, position, logprob, .. } => {
                let entry = self.live_entry(seq, None)?;
                if entry.expected_scores.get(entry.scores.len()) != Some(&(position, logprob)) {
                    return Err(format!("score {} of sequence {seq} is another", entry.scores.len()));
                }
                entry.scores.push((position, logprob));
            }
            SchedEvent::Finished { seq, reason } => {
                let entry = self.live_entry(seq, None)?;
                entry.place = Place::Ended;
                if reason != entry.end || entry.tokens.len() != entry.expected.len() {
                    return Err(format!(
                        "sequence {seq} should end by {:?} after {} tokens and has {}",
                        entry.end,
                        entry.expected.len(),
                        entry.tokens.len()
                    ));
                }
                if entry.admissions == 0 {
                    return Err(format!("sequence {seq} never ran"));
                }
                if reason != FinishReason::Error && entry.scores.len() != entry.expected_scores.len() {
                    return Err(format!("sequence {seq} ends after {} scores", entry.scores.len()));
                }
            }
            SchedEvent::Evicted { .. } => self.tally.evictions += 1,
        }
        Ok(())
    }

    /// Books a plan that was submitted.
    pub fn submit(&mut self, plan: &StepPlan) -> Result<(), Fault> {
        self.tally.submissions += 1;
        self.tally.device_steps += u64::from(plan.steps);
        self.tally.prefill_tokens += plan.prefill_tokens.len() as u64;
        self.tally.saves += plan.saves.len() as u64;
        self.tally.loads += plan.loads.len() as u64;
        if self.config.policy == Policy::PhaseSplit && !plan.prefill.is_empty() && !plan.decode.is_empty() {
            return Err("a phase-split plan mixes prompts and decoding".into());
        }
        Ok(())
    }

    /// At the end: everybody arrived and ended.
    pub fn close(&self) -> Result<(), Fault> {
        if let Some(seq) = self.announced.first() {
            return Err(format!("the arrival of sequence {seq} was never told"));
        }
        match self.live().next() {
            Some(seq) => Err(format!("sequence {seq} never ended")),
            None => Ok(()),
        }
    }
}
