//! The engine thread: commands -> schedule -> submit -> retire -> emit, until told to stop or a fault ends it.

use super::guided::Guides;
use super::handle::{Command, LONGEST_WAIT, Shared};
use super::live::Live;
use super::obey::Drain;
use super::output::Verdict;
use super::prepare::NOTHING_PREPARED;
use super::settings::{EngineSettings, RunnerFactory};
use crate::base::{RequestId, SeqId};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::StepShare;
use crate::runner::{Capacity, ModelRunner, Prepared, RunError, StepResult, TokenLogprob, Wait};
use crate::sched::plan::StepPlan;
use crate::sched::{FinishReason, SchedEvent, Scheduler};
use crate::trace::{Call, Tracer};
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long one poll may keep the thread from new commands.
const POLL_SLICE: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    GoOn,
    Stop,
}

/// The state of the engine thread.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) scheduler: Scheduler,
    /// `None` only between a lost device and its replacement.
    pub(super) runner: Option<Box<dyn ModelRunner>>,
    pub(super) rebuild: Option<RunnerFactory>,
    pub(super) settings: EngineSettings,
    pub(super) capacity: Capacity,
    pub(super) live: HashMap<RequestId, Live>,
    /// Whose output each sequence is, and which.
    pub(super) sequences: HashMap<SeqId, (RequestId, usize)>,
    /// What each submission under way is for, and since when.
    pub(super) flights: VecDeque<(StepShare, Instant)>,
    last_retired: Instant,
    /// What the runner did while there was nothing else to do.
    pub(super) prepared: Prepared,
    /// Runners built since a request last came to its end.
    pub(super) losses: u32,
    pub(super) draining: Vec<Drain>,
    pub(super) tracer: Option<Tracer>,
    pub(super) guides: Guides,
    /// Beginning of the time that scheduler and trace count in.
    pub(super) clock: Instant,
    // Reused from step to step.
    plan: StepPlan,
    result: StepResult,
    pub(super) events: Vec<SchedEvent>,
    touched: Vec<(RequestId, usize)>,
}

impl Worker {
    #[allow(clippy::too_many_arguments)] // all that it runs by
    pub fn new(
        shared: Arc<Shared>,
        commands: mpsc::Receiver<Command>,
        scheduler: Scheduler,
        runner: Box<dyn ModelRunner>,
        rebuild: Option<RunnerFactory>,
        settings: EngineSettings,
        capacity: Capacity,
        tracer: Option<Tracer>,
        guides: Guides,
    ) -> Self {
        Self {
            shared,
            commands,
            scheduler,
            runner: Some(runner),
            rebuild,
            settings,
            capacity,
            live: HashMap::new(),
            sequences: HashMap::new(),
            flights: VecDeque::new(),
            last_retired: Instant::now(),
            prepared: NOTHING_PREPARED,
            losses: 0,
            draining: Vec::new(),
            tracer,
            guides,
            clock: Instant::now(),
            plan: StepPlan::default(),
            result: StepResult::default(),
            events: Vec::new(),
            touched: Vec::new(),
        }
    }

    /// Serves until shut down or failed. Ends every stream in either case.
    pub fn run(mut self) {
        let end = match catch_unwind(AssertUnwindSafe(|| self.serve())) {
            Ok(Ok(())) => Error::new(ErrorKind::Cancelled, "the engine was shut down"),
            Ok(Err(error)) => error,
            Err(panic) => Error::bug(format!("the engine stopped at a defect of octavo: {}", panic_text(&*panic))),
        };
        let by_fault = end.kind() != ErrorKind::Cancelled;
        // Before the streams learn of it, so that whoever submits again is refused.
        self.shared.stop(end.clone());
        for (_, live) in self.live.drain() {
            live.fail(end.clone());
        }
        self.record_state();
        if let Some(Err(error)) = self.tracer.take().map(Tracer::finish) {
            log::error!("the trace is incomplete: {error}");
        }
        let Self { mut runner, scheduler, commands, mut result, settings, .. } = self;
        // Requests still in the channel end with it.
        drop(commands);
        let quiet = catch_unwind(AssertUnwindSafe(move || {
            if let Some(runner) = runner.as_mut().filter(|_| !by_fault) {
                retire_all(runner.as_mut(), scheduler, &mut result, settings.shutdown_deadline);
            }
            drop(runner);
        }));
        if quiet.is_err() {
            log::error!("the runner panicked while it was freed");
        }
    }

    fn serve(&mut self) -> Result<()> {
        loop {
            if self.drain_commands() == Next::Stop {
                return Ok(());
            }
            let outcome = if self.may_prepare() { self.prepare() } else { self.step() };
            match outcome {
                Ok(()) => {
                    if self.await_masks() == Next::Stop {
                        return Ok(());
                    }
                }
                Err(RunError::DeviceLost(why)) => {
                    if self.recover(&why)? == Next::Stop {
                        return Ok(());
                    }
                }
                Err(RunError::OutOfMemory(why)) => {
                    return Err(Error::memory(format!(
                        "the GPU ran out of memory while running: {why}; lower --gpu-memory-utilization or close other \
                         programs that use the GPU"
                    )));
                }
                Err(RunError::Bug(why)) => {
                    return Err(Error::bug(format!("the engine stopped at a defect of octavo: {why}")));
                }
            }
        }
    }

    pub(super) fn end(&mut self, seq: SeqId, reason: FinishReason) {
        self.guides.forget(seq);
        let Some((request, index)) = self.sequences.remove(&seq) else { return };
        // A retired step proves little: the step that kills the device may come after it each time.
        if matches!(reason, FinishReason::Stop | FinishReason::Length | FinishReason::Repetition) {
            self.losses = 0;
        }
        let Some(live) = self.live.get_mut(&request) else { return };
        let now = Instant::now();
        let over = live.end(index, reason, now);
        if reason.is_fault() {
            // One bad output spoils the request: its caller gets an error.
            let others: Vec<SeqId> = live.open().collect();
            others.into_iter().for_each(|seq| self.end_by_host(seq, FinishReason::Cancelled));
        }
        if over && let Some(live) = self.live.remove(&request) {
            live.finish(now, |finished| self.shared.metrics().finished(finished));
        }
    }

    /// Submits what can be submitted and takes at most one result.
    fn step(&mut self) -> Result<(), RunError> {
        let runner_gone = || RunError::DeviceLost("no runner".into());
        let mut submitted = false;
        loop {
            let planned = self.scheduler.schedule(&mut self.plan, &mut self.events);
            if let Some(tracer) = &mut self.tracer {
                tracer.call(self.clock.elapsed(), Call::Schedule { plan: planned.then_some(&self.plan) });
            }
            self.emit();
            if !planned {
                break;
            }
            submitted = true;
            self.guides.fill(&mut self.plan)?;
            let since = Instant::now();
            let runner = self.runner.as_mut().ok_or_else(runner_gone)?;
            runner.submit(&self.plan)?;
            self.flights.push_back((StepShare::of(&self.plan), since));
        }
        if self.scheduler.in_flight() == 0 {
            let stuck = self.scheduler.has_work() && !submitted && !self.scheduler.awaits_caller();
            return match stuck {
                true => Err(RunError::Bug("the scheduler has work but plans nothing".into())),
                false => Ok(()),
            };
        }
        let runner = self.runner.as_mut().ok_or_else(runner_gone)?;
        if runner.poll(Wait::AtMost(POLL_SLICE), &mut self.result)? {
            let (costs, prompt_limit) = (runner.costs(), runner.prompt_limit());
            self.scheduler.commit(&self.result, &mut self.events);
            if let Some(tracer) = &mut self.tracer {
                tracer.call(self.clock.elapsed(), Call::Commit { result: &self.result });
            }
            self.scheduler.set_costs(costs);
            self.trace(Call::Costs(costs));
            self.scheduler.set_prompt_limit(prompt_limit);
            self.trace(Call::PromptLimit(prompt_limit));
            self.record_step();
            self.emit();
            self.ask_for_masks();
        } else if self.stalled() {
            let limit = self.settings.stall_deadline.as_secs();
            return Err(RunError::DeviceLost(format!("a submission has not ended within {limit} s")));
        }
        Ok(())
    }

    /// Whether the oldest submission has had the device for too long.
    fn stalled(&self) -> bool {
        let oldest = self.flights.front().map(|(_, since)| (*since).max(self.last_retired));
        oldest.is_some_and(|since| since.elapsed() > self.settings.stall_deadline)
    }

    /// Passes the scheduler's news on to trace, figures and streams, at most one event for each stream per call.
    pub(super) fn emit(&mut self) {
        if self.events.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut events = std::mem::take(&mut self.events);
        self.shared.metrics().events(&events);
        if let Some(tracer) = &mut self.tracer {
            tracer.events(self.clock.elapsed(), &events, &self.scheduler.stats());
        }
        for event in events.drain(..) {
            self.take(event, now);
        }
        // Ending a sequence by hand may have brought more.
        events.append(&mut self.events);
        self.events = events;
        let mut touched = std::mem::take(&mut self.touched);
        for (request, index) in touched.drain(..) {
            if let Some(gap) = self.live.get_mut(&request).and_then(|live| live.flush(index, now)) {
                self.shared.metrics().delivered(gap);
            }
        }
        self.touched = touched;
    }

    fn take(&mut self, event: SchedEvent, now: Instant) {
        match event {
            SchedEvent::Admitted { seq, cached_tokens, .. } => {
                if let Some((live, _)) = self.live_of(seq) {
                    live.admitted(cached_tokens, now);
                }
            }
            SchedEvent::Preempted { seq, .. } => {
                if let Some((live, _)) = self.live_of(seq) {
                    live.preempted();
                }
            }
            SchedEvent::Score { seq, position, logprob, rank, top } => {
                let Some((request, _)) = self.sequences.get(&seq) else { return };
                if let Some(live) = self.live.get_mut(request) {
                    live.score(position, TokenLogprob { logprob, rank, top }, &self.result);
                }
            }
            SchedEvent::Token { seq, token, logprob } => {
                self.guides.token(seq, token);
                // Tokens beyond a stop text find their output gone.
                let Some(&owner) = self.sequences.get(&seq) else { return };
                let Some(live) = self.live.get_mut(&owner.0) else { return };
                match live.token(owner.1, token, logprob, &self.result, now) {
                    Verdict::End(reason) => self.end_by_host(seq, reason),
                    Verdict::GoOn if self.touched.last() != Some(&owner) => self.touched.push(owner),
                    Verdict::GoOn => {}
                }
            }
            SchedEvent::Finished { seq, reason } => self.end(seq, reason),
            SchedEvent::Arrived { .. }
            | SchedEvent::Chunk { .. }
            | SchedEvent::Decode { .. }
            | SchedEvent::Evicted { .. }
            | SchedEvent::Copied { .. } => {}
        }
    }

    fn live_of(&mut self, seq: SeqId) -> Option<(&mut Live, usize)> {
        let (request, index) = *self.sequences.get(&seq)?;
        Some((self.live.get_mut(&request)?, index))
    }

    fn record_step(&mut self) {
        let now = Instant::now();
        if let Some((share, since)) = self.flights.pop_front() {
            // Submissions run one after another: this one had the device since the one before it ended.
            let span = now - since.max(self.last_retired);
            if share.prefill_tokens == 0 {
                let step = (span / share.steps).max(Duration::from_micros(1));
                let fit = self.settings.submit_budget.as_nanos() / step.as_nanos();
                let limit = fit.try_into().unwrap_or(u16::MAX);
                self.scheduler.set_step_limit(limit);
                self.trace(Call::StepLimit(limit));
            }
            self.shared.metrics().retired(share, self.result.tokens.len(), span);
        }
        self.last_retired = now;
        self.record_state();
    }

    pub(super) fn record_state(&mut self) {
        let stats = self.scheduler.stats();
        self.shared.metrics().state(&stats);
    }
}

/// Lets what is on the device end, so that nothing it uses is freed under it.
fn retire_all(runner: &mut dyn ModelRunner, mut scheduler: Scheduler, result: &mut StepResult, limit: Duration) {
    let deadline = Instant::now() + limit.min(LONGEST_WAIT);
    let mut events = Vec::new();
    while scheduler.in_flight() > 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        match runner.poll(Wait::AtMost(left.min(POLL_SLICE)), result) {
            Ok(true) => scheduler.commit(result, &mut events),
            Ok(false) if left.is_zero() => {
                log::warn!("the GPU did not finish within {} s of shutting down", limit.as_secs());
                return;
            }
            Ok(false) => {}
            Err(error) => {
                log::warn!("while shutting down: {error}");
                return;
            }
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}
