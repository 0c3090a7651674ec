//! The scheduler's rules one by one, against the mock runner.

mod blocks;
mod control;
mod ends;
mod forks;
mod guided;
mod host;
mod limits;
mod policies;
mod prefix;
mod run_ahead;
mod windows;

use super::plan::StepPlan;
use super::*;
use crate::base::{RequestId, SeqId, TokenId};
use crate::runner::mock::{MockOptions, MockRunner};
use crate::runner::{ModelRunner, SampledToken, StepResult, Wait};
use crate::sampling::{SamplingParams, SamplingRow};
use std::time::Duration;

/// Scheduler and mock, driven by hand.
struct Rig {
    scheduler: Scheduler,
    runner: MockRunner,
    plan: StepPlan,
    events: Vec<SchedEvent>,
}

fn config() -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 4,
        max_num_batched_tokens: 64,
        max_model_len: 256,
        max_steps: 1,
        max_in_flight: 1,
        ..SchedulerConfig::for_capacity(&MockOptions::default().capacity)
    }
}

fn prompt(start: u32, len: usize) -> Vec<TokenId> {
    (start..start + len as u32).collect()
}

fn request(prompt: Vec<TokenId>, max_tokens: u32) -> NewSequence {
    NewSequence::new(RequestId(0), prompt, max_tokens, SamplingRow::new(&SamplingParams::default(), 0, &[]))
}

impl Rig {
    fn new(config: SchedulerConfig, block_count: u32) -> Self {
        Self::with(config, block_count, MockOptions::default())
    }

    /// With so many blocks on the host.
    fn with_host(config: SchedulerConfig, block_count: u32, host_blocks: u32) -> Self {
        let mut options = MockOptions::default();
        options.capacity.host_blocks = host_blocks;
        Self::with(config, block_count, options)
    }

    fn with(config: SchedulerConfig, block_count: u32, mut options: MockOptions) -> Self {
        options.capacity.block_count = block_count;
        let runner = MockRunner::new(options);
        let scheduler = Scheduler::new(config, runner.capacity()).unwrap();
        Self { scheduler, runner, plan: StepPlan::default(), events: vec![] }
    }

    fn add(&mut self, prompt: Vec<TokenId>, max_tokens: u32) -> SeqId {
        self.accept(request(prompt, max_tokens))
    }

    /// Who waits, most urgent first.
    fn waiting(&self) -> Vec<SeqId> {
        let sequences = &self.scheduler.sequences;
        let waits = |seq| super::scheduler::waits(sequences, seq);
        let mut waiting: Vec<_> = self.scheduler.waiting.iter(waits).map(|seq| sequences[&seq].urgency).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|urgency| urgency.seq).collect()
    }

    fn accept(&mut self, new: NewSequence) -> SeqId {
        self.scheduler.add(new, &mut self.events).unwrap()
    }

    /// Plans and submits; the plan as text, or "-".
    fn schedule(&mut self) -> String {
        if !self.scheduler.schedule(&mut self.plan, &mut self.events) {
            return "-".into();
        }
        self.scheduler.check_plan(&self.plan);
        self.runner.submit(&self.plan).unwrap();
        self.plan.to_string()
    }

    fn commit(&mut self) -> StepResult {
        let mut result = StepResult::default();
        assert!(self.runner.poll(Wait::AtMost(Duration::from_secs(1)), &mut result).unwrap());
        self.scheduler.commit(&result, &mut self.events);
        result
    }

    /// One step in lock step.
    fn step(&mut self) -> String {
        let text = self.schedule();
        self.commit();
        text
    }

    /// Commits after changing the sampled tokens.
    fn commit_as(&mut self, change: impl FnOnce(&mut Vec<SampledToken>)) -> StepResult {
        let mut result = StepResult::default();
        assert!(self.runner.poll(Wait::AtMost(Duration::from_secs(1)), &mut result).unwrap());
        change(&mut result.tokens);
        self.scheduler.commit(&result, &mut self.events);
        result
    }

    /// Runs until idle, with as much run-ahead as allowed.
    fn drain(&mut self) {
        for _ in 0..2000 {
            while self.schedule() != "-" {}
            if !self.scheduler.has_work() {
                return;
            }
            self.commit();
        }
        panic!("still working: {:?}", self.scheduler.stats());
    }

    fn tokens(&self, of: SeqId) -> Vec<TokenId> {
        let token = |event: &SchedEvent| match event {
            SchedEvent::Token { seq, token, .. } if *seq == of => Some(*token),
            _ => None,
        };
        self.events.iter().filter_map(token).collect()
    }

    fn reason(&self, of: SeqId) -> Option<FinishReason> {
        self.events.iter().find_map(|event| match event {
            SchedEvent::Finished { seq, reason } if *seq == of => Some(*reason),
            _ => None,
        })
    }

    fn cached(&self, of: SeqId) -> Vec<usize> {
        let cached = |event: &SchedEvent| match event {
            SchedEvent::Admitted { seq, cached_tokens, .. } if *seq == of => Some(*cached_tokens),
            _ => None,
        };
        self.events.iter().filter_map(cached).collect()
    }
}

/// What `prompt` generates in any correct engine.
fn alone(prompt: &[TokenId], max_tokens: usize) -> Vec<TokenId> {
    let row = SamplingRow::new(&SamplingParams::default(), 0, &[]);
    MockOptions::default().continuation(prompt, &row, &[], prompt.len() + max_tokens)
}
