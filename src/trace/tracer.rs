//! The tracer: told of every call and every event, it writes the file as they come.

use super::call::{Call, Recorded};
use super::read::Header;
use super::sink::Sink;
use super::tracks::{Tracks, Work};
use super::{CALL, FORMAT, Track};
use crate::base::Epoch;
use crate::error::{Error, Result};
use crate::runner::{Capacity, Costs, StepResult};
use crate::sched::plan::StepPlan;
use crate::sched::{SchedEvent, SchedulerConfig, SchedulerStats};
use serde_json::json;
use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Writes a trace. See the [module](super) for the format.
///
/// For each call of the scheduler: [`call`](Self::call) right after it, then [`events`](Self::events) with what it
/// brought. All times are on one clock that never goes back, such as the time since the engine started. Memory is bounded by
/// the live sequences. Nothing here returns an error before [`finish`](Self::finish): a full disk ends the trace with one
/// line in the log, and whoever is traced goes on.
///
/// ```
/// use octavo::base::RequestId;
/// use octavo::runner::ModelRunner;
/// use octavo::runner::mock::{MockOptions, MockRunner};
/// use octavo::sampling::{SamplingParams, SamplingRow};
/// use octavo::sched::{NewSequence, Scheduler, SchedulerConfig};
/// use octavo::trace::{Call, Tracer};
/// use std::time::Duration;
///
/// let capacity = MockRunner::new(MockOptions::default()).capacity();
/// let config = SchedulerConfig::for_capacity(&capacity);
/// let mut tracer = Tracer::new(&config, &capacity, Box::new(std::io::sink()))?;
/// let mut scheduler = Scheduler::new(config, capacity)?;
/// let sampling = SamplingRow::new(&SamplingParams::greedy(5), 0, &[]);
/// let (new, mut events) = (NewSequence::new(RequestId(1), vec![1, 2, 3], 5, sampling), Vec::new());
/// let seq = scheduler.add(new.clone(), &mut events)?;
/// tracer.call(Duration::ZERO, Call::Add { new: &new, seq });
/// tracer.events(Duration::ZERO, &events, &scheduler.stats());
/// tracer.finish()?;
/// # Ok::<(), octavo::error::Error>(())
/// ```
pub struct Tracer {
    sink: Sink,
    tracks: Tracks,
    flights: VecDeque<Flight>,
    /// Emptied row lists, kept for their memory.
    spare_rows: Vec<Vec<Work>>,
    last_retired: Duration,
    /// Calls in a row that planned nothing, and when the first of them was. A poll loop makes many.
    idle: Option<(Duration, u64)>,
    step_limit: Option<u16>,
    prompt_limit: Option<u32>,
    costs: Option<Costs>,
    counted: Option<SchedulerStats>,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").field("open", &self.sink.is_open()).finish_non_exhaustive()
    }
}

/// A submission under way.
struct Flight {
    epoch: Epoch,
    submitted: Duration,
    shape: Shape,
    rows: Vec<Work>,
}

/// What a submission is made of.
#[derive(Clone, Copy)]
struct Shape {
    steps: u16,
    prefill_tokens: usize,
    chunks: usize,
    decode_rows: usize,
    new_blocks: usize,
    saves: usize,
    loads: usize,
    copies: usize,
}

impl Shape {
    fn of(plan: &StepPlan) -> Self {
        Self {
            steps: plan.steps,
            prefill_tokens: plan.prefill_tokens.len(),
            chunks: plan.prefill.len(),
            decode_rows: plan.decode.len(),
            new_blocks: plan.table_updates.len(),
            saves: plan.saves.len(),
            loads: plan.loads.len(),
            copies: plan.copies.len(),
        }
    }

    fn name(&self) -> &'static str {
        match (self.chunks, self.decode_rows) {
            (0, _) => "decode",
            (_, 0) => "prefill",
            _ => "mixed",
        }
    }
}

impl Tracer {
    /// Begins a trace of a fresh scheduler with this configuration and capacity. `out` need not be buffered.
    ///
    /// # Errors
    /// Nothing can be written.
    pub fn new(config: &SchedulerConfig, capacity: &Capacity, out: Box<dyn Write + Send>) -> Result<Self> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let mut sink =
            Sink::new(out, &Header { format: FORMAT, version, config: config.clone(), capacity: *capacity })?;
        let names = [
            (Track::SUBMISSIONS, "process_name", "device"),
            (Track::SUBMISSIONS, "thread_name", "submissions"),
            (Track::CALLS, "thread_name", "scheduler"),
            (Track { pid: Track::SEQUENCES, tid: 0 }, "process_name", "sequences"),
        ];
        for (track, what, name) in names {
            sink.describe(track, what, json!({ "name": name }));
        }
        Ok(Self {
            sink,
            tracks: Tracks::default(),
            flights: VecDeque::new(),
            spare_rows: Vec::new(),
            last_retired: Duration::ZERO,
            idle: None,
            step_limit: None,
            prompt_limit: None,
            costs: None,
            counted: None,
        })
    }

    /// Begins a trace in a new file, and makes the folders that lead there. A file of that name is replaced.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path, config: &SchedulerConfig, capacity: &Capacity) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::config(format!("the trace {} cannot be written: {error}; choose another place", path.display()))
        };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        Self::new(config, capacity, Box::new(std::fs::File::create(path).map_err(failed)?))
    }

    /// The scheduler was called at `at`, and did not refuse.
    pub fn call(&mut self, at: Duration, call: Call<'_>) {
        if !self.sink.is_open() {
            return;
        }
        match call {
            Call::Schedule { plan: None } => {
                let (_, times) = self.idle.get_or_insert((at, 0));
                *times += 1;
                return;
            }
            // Told again and again; only changes matter.
            Call::StepLimit(steps) if self.step_limit.replace(steps) == Some(steps) => return,
            Call::PromptLimit(tokens) if self.prompt_limit.replace(tokens) == Some(tokens) => return,
            Call::Costs(costs) if self.costs.replace(costs) == Some(costs) => return,
            _ => {}
        }
        self.write_idle();
        let recorded = Recorded::of(call);
        self.sink.instant(CALL, Track::CALLS, recorded.name(), at, &recorded);
        match call {
            // Not by its event: that may come after the call that ends the sequence.
            Call::Add { new, seq } => self.tracks.arrived(at, seq, new.request, new.prompt.len(), &mut self.sink),
            Call::Schedule { plan: Some(plan) } => self.submitted(at, plan),
            Call::Commit { result } => self.retired(at, result),
            Call::Finish { seq } => self.tracks.finished(at, seq, "ended by the host", &mut self.sink),
            Call::Requeue => self.flights.clear(),
            _ => {}
        }
    }

    /// What the last call brought, and where the scheduler stands after it.
    pub fn events(&mut self, at: Duration, events: &[SchedEvent], stats: &SchedulerStats) {
        if !self.sink.is_open() {
            return;
        }
        let (mut evicted, mut kept) = (0, 0);
        for event in events {
            if let SchedEvent::Evicted { kept: place, .. } = event {
                evicted += 1;
                kept += usize::from(place.is_some());
            }
            self.tracks.event(at, event, &mut self.sink);
        }
        if evicted > 0 {
            let args = json!({ "blocks": evicted, "kept_on_host": kept });
            self.sink.instant("", Track::SUBMISSIONS, "evicted", at, args);
        }
        self.count(at, stats);
        self.sink.tick(at);
    }

    /// Ends the file properly. A tracer that is dropped instead does the same and keeps faults to itself.
    ///
    /// # Errors
    /// Something could not be written, now or before: the trace is incomplete.
    pub fn finish(mut self) -> Result<()> {
        self.write_idle();
        self.sink.close()
    }

    fn submitted(&mut self, at: Duration, plan: &StepPlan) {
        let mut rows = self.spare_rows.pop().unwrap_or_default();
        self.tracks.rows(plan, &mut rows);
        self.flights.push_back(Flight { epoch: plan.epoch, submitted: at, shape: Shape::of(plan), rows });
    }

    fn retired(&mut self, at: Duration, result: &StepResult) {
        if self.flights.front().is_none_or(|flight| flight.epoch != result.epoch) {
            return;
        }
        let Some(Flight { epoch, submitted, shape, mut rows }) = self.flights.pop_front() else { return };
        // Submissions run one after another: this one had the device since the one before it ended.
        let from = submitted.max(self.last_retired);
        self.last_retired = at;
        let args = json!({
            "epoch": epoch.0,
            "steps": shape.steps,
            "chunks": shape.chunks,
            "prefill_tokens": shape.prefill_tokens,
            "decode_rows": shape.decode_rows,
            "new_blocks": shape.new_blocks,
            "saves": shape.saves,
            "loads": shape.loads,
            "copies": shape.copies,
            "tokens": result.tokens.len(),
            "device_micros": result.micros,
        });
        self.sink.span(Track::SUBMISSIONS, shape.name(), from, at, args);
        self.tracks.worked(&rows, u64::from(shape.steps), from, at, &mut self.sink);
        rows.clear();
        self.spare_rows.push(rows);
    }

    fn write_idle(&mut self) {
        if let Some((at, times)) = self.idle.take() {
            let recorded = Recorded::Schedule { plan: None, times };
            self.sink.instant(CALL, Track::CALLS, "nothing to schedule", at, &recorded);
        }
    }

    fn count(&mut self, at: Duration, stats: &SchedulerStats) {
        let blocks = |stats: &SchedulerStats| (stats.blocks_used, stats.blocks_cached, stats.blocks_free);
        let host = |stats: &SchedulerStats| (stats.host_used, stats.host_cached);
        let queues = |stats: &SchedulerStats| (stats.running, stats.waiting);
        let before = self.counted.replace(*stats);
        if before.as_ref().map(blocks) != Some(blocks(stats)) {
            let (used, cached, free) = blocks(stats);
            self.sink.counter("KV blocks", at, json!({ "used": used, "cached": cached, "free": free }));
        }
        if stats.host_total > 0 && before.as_ref().map(host) != Some(host(stats)) {
            let (used, cached) = host(stats);
            self.sink.counter("host blocks", at, json!({ "used": used, "cached": cached }));
        }
        if before.as_ref().map(queues) != Some(queues(stats)) {
            let (running, waiting) = queues(stats);
            self.sink.counter("sequences", at, json!({ "running": running, "waiting": waiting }));
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.write_idle();
        // Logged where it happened, and nobody is left to tell. After `finish` this adds nothing.
        let _ = self.sink.close();
    }
}
