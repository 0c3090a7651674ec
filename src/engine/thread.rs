//! The engine thread: commands -> schedule -> submit -> retire -> emit, until told to stop or a fault ends it.

use super::handle::{Command, Shared, Submission};
use super::live::{Live, Verdict};
use super::request::Scoring;
use super::settings::{EngineSettings, RunnerFactory};
use crate::base::{RequestId, SeqId};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::StepShare;
use crate::runner::{Capacity, ModelRunner, RunError, StepResult, Wait};
use crate::sampling::SamplingRow;
use crate::sched::plan::StepPlan;
use crate::sched::{FinishReason, NewSequence, SchedEvent, Scheduler};
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
    commands: mpsc::Receiver<Command>,
    pub(super) scheduler: Scheduler,
    /// `None` only between a lost device and its replacement.
    pub(super) runner: Option<Box<dyn ModelRunner>>,
    pub(super) rebuild: Option<RunnerFactory>,
    pub(super) settings: EngineSettings,
    pub(super) capacity: Capacity,
    live: HashMap<SeqId, Live>,
    sequences: HashMap<RequestId, SeqId>,
    /// What each submission under way is for, and since when.
    pub(super) flights: VecDeque<(StepShare, Instant)>,
    last_retired: Instant,
    /// Runners built since a request last came to its end.
    pub(super) losses: u32,
    // Reused from step to step.
    plan: StepPlan,
    result: StepResult,
    events: Vec<SchedEvent>,
    touched: Vec<SeqId>,
}

impl Worker {
    pub fn new(
        shared: Arc<Shared>,
        commands: mpsc::Receiver<Command>,
        scheduler: Scheduler,
        runner: Box<dyn ModelRunner>,
        rebuild: Option<RunnerFactory>,
        settings: EngineSettings,
        capacity: Capacity,
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
            losses: 0,
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
            match self.step() {
                Ok(()) => {}
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

    /// Takes what arrived; blocks while there is nothing else to do.
    fn drain_commands(&mut self) -> Next {
        loop {
            let command = if self.scheduler.has_work() {
                match self.commands.try_recv() {
                    Ok(command) => command,
                    Err(mpsc::TryRecvError::Empty) => return Next::GoOn,
                    Err(mpsc::TryRecvError::Disconnected) => return Next::Stop,
                }
            } else {
                match self.commands.recv() {
                    Ok(command) => command,
                    Err(mpsc::RecvError) => return Next::Stop,
                }
            };
            if self.obey(command) == Next::Stop {
                return Next::Stop;
            }
        }
    }

    /// Serves commands, and nothing else, until `deadline`.
    pub(super) fn serve_commands_until(&mut self, deadline: Instant) -> Next {
        loop {
            match self.commands.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(command) => {
                    if self.obey(command) == Next::Stop {
                        return Next::Stop;
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => return Next::GoOn,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Next::Stop,
            }
        }
    }

    fn obey(&mut self, command: Command) -> Next {
        match command {
            Command::Add(submission) => self.add(*submission),
            Command::Cancel(request) => {
                if let Some(seq) = self.sequences.get(&request) {
                    self.end_by_host(*seq, FinishReason::Cancelled);
                }
            }
            Command::CancelAll => {
                let all: Vec<SeqId> = self.live.keys().copied().collect();
                for seq in all {
                    self.end_by_host(seq, FinishReason::Cancelled);
                }
            }
            Command::ShutDown => return Next::Stop,
        }
        Next::GoOn
    }

    fn add(&mut self, submission: Submission) {
        let params = &submission.params;
        let score = submission.scoring == Scoring::Prompt;
        let room = self.settings.scheduler.max_model_len.saturating_sub(submission.prompt.len()).max(1);
        let max_tokens = if score { 0 } else { params.max_tokens.unwrap_or(u32::try_from(room).unwrap_or(u32::MAX)) };
        let mut stop_tokens = params.stop_token_ids.clone();
        if !params.ignore_eos {
            stop_tokens.extend(&self.settings.end_tokens);
        }
        let sampling = SamplingRow::new(params, submission.seed, &stop_tokens);
        let new = NewSequence {
            stop_tokens: stop_tokens.clone(),
            cache_salt: submission.cache_salt.clone(),
            score,
            ..NewSequence::new(submission.request, submission.prompt.to_vec(), max_tokens, sampling)
        };
        let request = submission.request;
        let live = Live::new(submission, stop_tokens);
        match self.scheduler.add(new, &mut self.events) {
            Ok(seq) => {
                self.shared.metrics().requests += 1;
                self.sequences.insert(request, seq);
                self.live.insert(seq, live);
            }
            Err(error) => {
                self.shared.metrics().refused += 1;
                live.fail(error);
            }
        }
    }

    /// Ends a sequence that the scheduler would go on with.
    fn end_by_host(&mut self, seq: SeqId, reason: FinishReason) {
        self.scheduler.finish(seq);
        self.record_state();
        self.end(seq, reason);
    }

    fn end(&mut self, seq: SeqId, reason: FinishReason) {
        let Some(live) = self.live.remove(&seq) else { return };
        self.sequences.remove(&live.request);
        // A retired step proves little: the step that kills the device may come after it each time.
        if matches!(reason, FinishReason::Stop | FinishReason::Length) {
            self.losses = 0;
        }
        live.finish(reason, Instant::now(), |finished| self.shared.metrics().finished(finished));
    }

    /// Submits what can be submitted and takes at most one result.
    fn step(&mut self) -> Result<(), RunError> {
        let runner_gone = || RunError::DeviceLost("no runner".into());
        let mut submitted = false;
        loop {
            let planned = self.scheduler.schedule(&mut self.plan, &mut self.events);
            self.emit();
            if !planned {
                break;
            }
            submitted = true;
            let since = Instant::now();
            let runner = self.runner.as_mut().ok_or_else(runner_gone)?;
            runner.submit(&self.plan)?;
            self.flights.push_back((StepShare::of(&self.plan), since));
        }
        if self.scheduler.in_flight() == 0 {
            return match self.scheduler.has_work() && !submitted {
                true => Err(RunError::Bug("the scheduler has work but plans nothing".into())),
                false => Ok(()),
            };
        }
        let runner = self.runner.as_mut().ok_or_else(runner_gone)?;
        if runner.poll(Wait::AtMost(POLL_SLICE), &mut self.result)? {
            self.scheduler.commit(&self.result, &mut self.events);
            self.record_step();
            self.emit();
        }
        Ok(())
    }

    /// Passes the scheduler's news on to the streams, at most one event for each per call.
    fn emit(&mut self) {
        let now = Instant::now();
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                SchedEvent::Admitted { seq, cached_tokens, .. } => {
                    if let Some(live) = self.live.get_mut(&seq) {
                        live.admitted(cached_tokens, now);
                    }
                }
                SchedEvent::Preempted { seq, .. } => {
                    if let Some(live) = self.live.get_mut(&seq) {
                        live.preempted();
                    }
                }
                SchedEvent::Score { seq, logprob, .. } => {
                    if let Some(live) = self.live.get_mut(&seq) {
                        live.score(logprob);
                    }
                }
                SchedEvent::Token { seq, token } => {
                    // Tokens beyond a stop text find their request gone.
                    let Some(live) = self.live.get_mut(&seq) else { continue };
                    match live.token(token, now) {
                        Verdict::StopText => self.end_by_host(seq, FinishReason::Stop),
                        Verdict::GoOn if self.touched.last() != Some(&seq) => self.touched.push(seq),
                        Verdict::GoOn => {}
                    }
                }
                SchedEvent::Finished { seq, reason } => self.end(seq, reason),
                _ => {}
            }
        }
        self.events = events;
        for seq in self.touched.drain(..) {
            if let Some(live) = self.live.get_mut(&seq) {
                live.flush();
            }
        }
    }

    fn record_step(&mut self) {
        let now = Instant::now();
        if let Some((share, since)) = self.flights.pop_front() {
            // Submissions run one after another: this one had the device since the one before it ended.
            let span = now - since.max(self.last_retired);
            if share.prefill_tokens == 0 {
                let step = (span / share.steps).max(Duration::from_micros(1));
                let fit = self.settings.submit_budget.as_nanos() / step.as_nanos();
                self.scheduler.set_step_limit(fit.try_into().unwrap_or(u16::MAX));
            }
            self.shared.metrics().retired(share, self.result.tokens.len(), span);
        }
        self.last_retired = now;
        self.record_state();
    }

    fn record_state(&mut self) {
        let stats = self.scheduler.stats();
        self.shared.metrics().state(&stats);
    }
}

/// Lets what is on the device end, so that nothing it uses is freed under it.
fn retire_all(runner: &mut dyn ModelRunner, mut scheduler: Scheduler, result: &mut StepResult, limit: Duration) {
    let deadline = Instant::now() + limit;
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
