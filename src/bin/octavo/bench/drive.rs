//! Requests through scheduler and runner, without engine, threads or text: what the benches of one model measure.

use octavo::base::{RequestId, TokenId};
use octavo::error::Result;
use octavo::runner::wgpu::WgpuRunner;
use octavo::runner::{ModelRunner, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::StepPlan;
use octavo::sched::{NewSequence, Scheduler, SchedulerConfig};
use octavo::sim::run_error;
use std::time::{Duration, Instant};

/// A scheduler at work on a runner. Its prefix cache lives from run to run.
pub struct Drive<'a> {
    /// What runs.
    pub runner: &'a mut WgpuRunner,
    scheduler: Scheduler,
    requests: u64,
    plan: StepPlan,
    result: StepResult,
}

/// One run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// From the first submission until every sequence has its first token.
    pub first: Duration,
    /// From then to the end.
    pub later: Duration,
    /// Tokens of that time.
    pub later_tokens: usize,
}

/// Longest wait for one submission: a software adapter may take minutes for a long prompt.
const PATIENCE: Duration = Duration::from_secs(600);

impl<'a> Drive<'a> {
    /// An idle scheduler with these settings.
    ///
    /// # Errors
    /// Settings that contradict each other.
    pub fn new(runner: &'a mut WgpuRunner, config: SchedulerConfig) -> Result<Self> {
        let scheduler = Scheduler::new(config, runner.capacity())?;
        Ok(Self { runner, scheduler, requests: 0, plan: StepPlan::default(), result: StepResult::default() })
    }

    /// Adds a request for `tokens` tokens, greedy and without end tokens.
    ///
    /// # Errors
    /// It does not fit.
    pub fn add(&mut self, prompt: Vec<TokenId>, tokens: u32) -> Result<()> {
        let sampling = SamplingRow::new(&SamplingParams::default(), 0, &[]);
        let new = NewSequence::new(RequestId(self.requests), prompt, tokens, sampling);
        self.requests += 1;
        self.scheduler.add(new, &mut Vec::new()).map(drop)
    }

    /// Runs `sequences` added requests, that have run to their ends when this returns.
    ///
    /// # Errors
    /// The device failed.
    pub fn run(&mut self, sequences: usize) -> Result<Measured> {
        let mut events = Vec::new();
        let start = Instant::now();
        let (mut first, mut seen, mut early) = (None, 0, 0);
        while self.scheduler.has_work() {
            while self.scheduler.schedule(&mut self.plan, &mut events) {
                self.runner.submit(&self.plan).map_err(run_error)?;
            }
            if self.runner.poll(Wait::AtMost(PATIENCE), &mut self.result).map_err(run_error)? {
                self.scheduler.commit(&self.result, &mut events);
                self.scheduler.set_prompt_limit(self.runner.prompt_limit());
                seen += self.result.tokens.len();
                // Sequences start together, so as many tokens as sequences mean that each has its first, or nearly so.
                if first.is_none() && seen >= sequences {
                    first = Some(start.elapsed());
                    early = seen;
                }
            }
            events.clear();
        }
        let first = first.unwrap_or_default();
        Ok(Measured { first, later: start.elapsed().saturating_sub(first), later_tokens: seen - early })
    }
}

/// A prompt that differs from those of other numbers from the first token on, of ids that every vocabulary has.
pub fn prompt(number: usize, tokens: usize, vocab_size: u32) -> Vec<TokenId> {
    let spread = vocab_size.min(20_000);
    (0..tokens).map(|i| ((i * 7919 + number * 104_729 + 17) as TokenId) % spread).collect()
}

/// The middle of sorted or unsorted figures, and their ends: (median, least, most).
pub fn spread(figures: impl IntoIterator<Item = f64>) -> (f64, f64, f64) {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    match &sorted[..] {
        [] => (0.0, 0.0, 0.0),
        all => (all[all.len() / 2], all[0], all[all.len() - 1]),
    }
}
