//! Drives a runner with the real scheduler: requests in, tokens out, everything in the caller's thread.

// Each test program uses its own part of this file.
#![allow(dead_code)]

use octavo::base::{RequestId, SeqId, TokenId};
use octavo::runner::{ModelRunner, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::StepPlan;
use octavo::sched::{FinishReason, NewSequence, SchedEvent, Scheduler, SchedulerConfig, SchedulerStats};
use std::collections::HashMap;
use std::time::Duration;

/// One request.
#[derive(Clone, Debug)]
pub struct Ask {
    pub prompt: Vec<TokenId>,
    pub max_tokens: u32,
    pub params: SamplingParams,
    pub seed: u64,
    /// Step after which it arrives.
    pub arrival: usize,
}

impl Ask {
    fn sequence(&self, id: usize) -> NewSequence {
        let stops = &self.params.stop_token_ids;
        let sampling = SamplingRow::new(&self.params, self.seed, stops);
        NewSequence {
            stop_tokens: stops.clone(),
            ..NewSequence::new(RequestId(id as u64), self.prompt.clone(), self.max_tokens, sampling)
        }
    }
}

/// What the plans of a run were like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub submissions: u64,
    pub largest_chunk: u32,
}

/// Plain settings: whole prompts, no cache, one step and one submission at a time.
pub fn plain(capacity: &octavo::runner::Capacity) -> SchedulerConfig {
    SchedulerConfig { prefix_cache: false, max_steps: 1, max_in_flight: 1, ..SchedulerConfig::for_capacity(capacity) }
}

/// Runs all of `asks` to their end and returns their tokens in order, the scheduler's figures (`steps` counts what the device
/// did), and what was seen of the plans.
pub fn run(
    runner: &mut dyn ModelRunner,
    config: SchedulerConfig,
    asks: &[Ask],
) -> (Vec<Vec<TokenId>>, SchedulerStats, Seen) {
    let mut scheduler = Scheduler::new(config, runner.capacity()).unwrap();
    let mut owners: HashMap<SeqId, usize> = HashMap::new();
    let mut tokens = vec![Vec::new(); asks.len()];
    let (mut plan, mut result, mut events) = (StepPlan::default(), StepResult::default(), Vec::new());
    let mut arrived = vec![false; asks.len()];
    let (mut step, mut seen) = (0, Seen::default());
    loop {
        for (index, ask) in asks.iter().enumerate() {
            if !arrived[index] && ask.arrival <= step {
                arrived[index] = true;
                owners.insert(scheduler.add(ask.sequence(index), &mut events).unwrap(), index);
            }
        }
        while scheduler.schedule(&mut plan, &mut events) {
            runner.submit(&plan).unwrap_or_else(|error| panic!("{error}: {plan}"));
            step += 1;
            seen.submissions += 1;
            let longest = plan.prefill.iter().map(|chunk| chunk.len).max().unwrap_or(0);
            seen.largest_chunk = seen.largest_chunk.max(longest);
        }
        if scheduler.in_flight() > 0 && runner.poll(Wait::AtMost(Duration::from_secs(60)), &mut result).unwrap() {
            scheduler.commit(&result, &mut events);
        }
        for event in events.drain(..) {
            match event {
                SchedEvent::Token { seq, token, .. } => tokens[owners[&seq]].push(token),
                SchedEvent::Finished { reason, .. } => {
                    assert!(matches!(reason, FinishReason::Length | FinishReason::Stop), "{reason:?}");
                }
                _ => {}
            }
        }
        if !scheduler.has_work() {
            match arrived.iter().all(|arrived| *arrived) {
                true => break,
                // Nothing runs until the next one arrives.
                false => step += 1,
            }
        }
    }
    (tokens, scheduler.stats(), seen)
}

/// A small generator for test data: the seed says everything. (SplitMix64, Steele et al. 2014.)
pub struct Dice(pub u64);

impl Dice {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.word() % end
    }
}
