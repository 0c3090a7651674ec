//! Scheduler and runner in a circle, in the caller's thread: requests in, a timeline for each out.
//!
//! No engine thread, no text, no recovery: what is measured is the schedule. Times are those of the runner's clock.

use super::timed::{TimedRunner, run_error};
use crate::base::{SeqId, TokenId};
use crate::error::Result;
use crate::runner::{Costs, StepResult, Wait};
use crate::sched::plan::StepPlan;
use crate::sched::{FinishReason, NewSequence, SchedEvent, Scheduler, SchedulerConfig, SchedulerStats};
use crate::trace::{Call, Tracer};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// What happened to one request, and when, in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Of these, tokens that the first admission found cached.
    pub cached_tokens: usize,
    /// When it was due.
    pub arrival_micros: u64,
    /// When it first got a slot.
    pub admitted_micros: Option<u64>,
    /// When each token was seen. Tokens of one submission come together.
    pub token_micros: Vec<u64>,
    /// The tokens.
    pub tokens: Vec<TokenId>,
    /// When and why it ended.
    pub end: Option<(u64, FinishReason)>,
    /// Times it lost its slot.
    pub preemptions: u32,
}

/// The state after a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When.
    pub micros: u64,
    /// Sequences with a slot.
    pub running: usize,
    /// Sequences without one.
    pub waiting: usize,
    /// Blocks that hold something needed.
    pub blocks_used: usize,
    /// Prompt and output tokens of the sequences with a slot.
    pub tokens_held: usize,
    /// Sequences that the submission which just ended computed for.
    pub computing: usize,
}

/// What came out of a run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// One for each request, in the order in which they were given.
    pub timelines: Vec<Timeline>,
    /// One for each result.
    pub samples: Vec<Sample>,
    /// The scheduler's last figures.
    pub stats: SchedulerStats,
    /// From the first arrival to the last end.
    pub micros: u64,
}

/// See the module.
pub struct Driver<R> {
    runner: R,
    scheduler: Scheduler,
    /// By arrival.
    due: VecDeque<(usize, NewSequence)>,
    owners: HashMap<SeqId, usize>,
    live: Vec<Option<SeqId>>,
    /// Requests with a slot.
    seated: BTreeSet<usize>,
    /// Sequences that each submission under way computes for.
    computing: VecDeque<usize>,
    run: Run,
    plan: StepPlan,
    result: StepResult,
    events: Vec<SchedEvent>,
    ended: usize,
    costs: Costs,
    prompt_limit: u32,
    tracer: Option<Tracer>,
}

/// A result that takes longer than this is a hang; it is polled for again.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

impl<R: TimedRunner> Driver<R> {
    /// An idle driver.
    ///
    /// # Errors
    /// The configuration contradicts itself or the runner.
    pub fn new(config: SchedulerConfig, runner: R) -> Result<Self> {
        let scheduler = Scheduler::new(config, runner.capacity())?;
        Ok(Self {
            runner,
            scheduler,
            due: VecDeque::new(),
            owners: HashMap::new(),
            live: Vec::new(),
            seated: BTreeSet::new(),
            computing: VecDeque::new(),
            run: Run::default(),
            plan: StepPlan::default(),
            result: StepResult::default(),
            events: Vec::new(),
            ended: 0,
            costs: Costs::default(),
            prompt_limit: u32::MAX,
            tracer: None,
        })
    }

    /// The same driver, which tells `tracer` of every call.
    pub fn with_tracer(mut self, tracer: Tracer) -> Self {
        self.tracer = Some(tracer);
        self
    }

    /// Announces a request for its `arrival_micros` and returns its number, which counts from 0. Its `fork_of` is overwritten
    /// if `parent` is given, the number of an earlier request with the same prompt and arrival.
    pub fn submit(&mut self, new: NewSequence, parent: Option<usize>) -> usize {
        let number = self.run.timelines.len();
        self.run.timelines.push(Timeline {
            prompt_tokens: new.prompt.len(),
            arrival_micros: new.arrival_micros,
            ..Timeline::default()
        });
        self.live.push(None);
        let at = self.due.partition_point(|(_, other)| other.arrival_micros <= new.arrival_micros);
        // The parent's id is known once it has arrived; until then its number stands in for it.
        let fork_of = parent.map(|parent| SeqId(parent as u64));
        self.due.insert(at, (number, NewSequence { fork_of, ..new }));
        number
    }

    /// Ends a request that arrived; no event and no token of it comes any more.
    pub fn cancel(&mut self, number: usize) {
        let Some(seq) = self.live.get(number).copied().flatten() else { return };
        self.scheduler.finish(seq);
        self.trace(|_| Call::Finish { seq });
        self.close(seq, self.runner.now_micros(), FinishReason::Cancelled);
    }

    /// One circle: what has arrived is added, everything that can be submitted is, and one result is awaited, no longer than
    /// until the next arrival. False when all requests have ended.
    ///
    /// # Errors
    /// A request that can never run, or a failing runner.
    pub fn turn(&mut self) -> Result<bool> {
        self.arrive()?;
        loop {
            let planned = self.scheduler.schedule(&mut self.plan, &mut self.events);
            self.trace(|driver| Call::Schedule { plan: planned.then_some(&driver.plan) });
            self.digest();
            if !planned {
                break;
            }
            self.computing.push_back(self.plan.prefill.len() + self.plan.decode.len());
            self.runner.submit(&self.plan).map_err(run_error)?;
        }
        let next = self.due.front().map(|(_, new)| new.arrival_micros);
        if self.scheduler.in_flight() > 0 {
            let wait = match next {
                Some(next) => Duration::from_micros(next.saturating_sub(self.runner.now_micros())),
                None => LONGEST_WAIT,
            };
            if self.runner.poll(Wait::AtMost(wait), &mut self.result).map_err(run_error)? {
                self.scheduler.commit(&self.result, &mut self.events);
                self.trace(|driver| Call::Commit { result: &driver.result });
                self.digest();
                self.weigh();
                self.sample();
            }
            return Ok(true);
        }
        if let Some(next) = next {
            self.runner.wait_until(next);
            return Ok(true);
        }
        Ok(self.scheduler.has_work())
    }

    /// Turns until all requests have ended. `ended` is told how many have whenever that changes.
    ///
    /// # Errors
    /// As [`Driver::turn`].
    pub fn run(&mut self, ended: &mut dyn FnMut(usize)) -> Result<()> {
        let mut before = self.ended;
        while self.turn()? {
            if self.ended > before {
                before = self.ended;
                ended(before);
            }
        }
        ended(self.ended);
        Ok(())
    }

    /// Requests that have ended.
    pub fn ended(&self) -> usize {
        self.ended
    }

    /// The scheduler, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The results and the runner.
    ///
    /// # Errors
    /// The trace could not be written.
    pub fn finish(mut self) -> Result<(Run, R)> {
        let first = self.run.timelines.iter().map(|timeline| timeline.arrival_micros).min().unwrap_or(0);
        let last = self.run.timelines.iter().filter_map(|timeline| timeline.end).map(|(at, _)| at).max();
        self.run.micros = last.unwrap_or(first).saturating_sub(first);
        self.run.stats = self.scheduler.stats();
        if let Some(tracer) = self.tracer.take() {
            tracer.finish()?;
        }
        Ok((self.run, self.runner))
    }

    fn arrive(&mut self) -> Result<()> {
        let now = self.runner.now_micros();
        while self.due.front().is_some_and(|(_, new)| new.arrival_micros <= now) {
            let Some((number, mut new)) = self.due.pop_front() else { break };
            // A parent that has ended leaves an ordinary request.
            new.fork_of = new.fork_of.and_then(|parent| self.live[parent.0 as usize]);
            let traced = self.tracer.is_some().then(|| new.clone());
            let seq = self.scheduler.add(new, &mut self.events)?;
            if let (Some(tracer), Some(new)) = (&mut self.tracer, &traced) {
                tracer.call(Duration::from_micros(now), Call::Add { new, seq });
            }
            self.owners.insert(seq, number);
            self.live[number] = Some(seq);
        }
        Ok(())
    }

    /// Tells the scheduler what work costs now, for [`Preemption::Auto`](crate::sched::Preemption), and what a step may hold.
    fn weigh(&mut self) {
        let costs = self.runner.costs();
        if costs != self.costs {
            self.costs = costs;
            self.scheduler.set_costs(costs);
            self.trace(|_| Call::Costs(costs));
        }
        let prompt_limit = self.runner.prompt_limit();
        if prompt_limit != self.prompt_limit {
            self.prompt_limit = prompt_limit;
            self.scheduler.set_prompt_limit(prompt_limit);
            self.trace(|_| Call::PromptLimit(prompt_limit));
        }
    }

    fn trace(&mut self, call: impl FnOnce(&Self) -> Call<'_>) {
        // Out of the way, so that the call may borrow the rest.
        if let Some(mut tracer) = self.tracer.take() {
            tracer.call(Duration::from_micros(self.runner.now_micros()), call(self));
            self.tracer = Some(tracer);
        }
    }

    fn digest(&mut self) {
        let now = self.runner.now_micros();
        let mut events = std::mem::take(&mut self.events);
        if let Some(tracer) = &mut self.tracer {
            tracer.events(Duration::from_micros(now), &events, &self.scheduler.stats());
        }
        for event in events.drain(..) {
            match event {
                SchedEvent::Admitted { seq, cached_tokens, .. } => {
                    let Some(&number) = self.owners.get(&seq) else { continue };
                    self.seated.insert(number);
                    let timeline = &mut self.run.timelines[number];
                    if timeline.admitted_micros.is_none() {
                        timeline.admitted_micros = Some(now);
                        timeline.cached_tokens = cached_tokens;
                    }
                }
                SchedEvent::Preempted { seq, .. } => {
                    let Some(&number) = self.owners.get(&seq) else { continue };
                    self.seated.remove(&number);
                    self.run.timelines[number].preemptions += 1;
                }
                SchedEvent::Token { seq, token, .. } => {
                    let Some(&number) = self.owners.get(&seq) else { continue };
                    let timeline = &mut self.run.timelines[number];
                    timeline.tokens.push(token);
                    timeline.token_micros.push(now);
                }
                SchedEvent::Finished { seq, reason } => self.close(seq, now, reason),
                _ => {}
            }
        }
        self.events = events;
    }

    fn close(&mut self, seq: SeqId, now: u64, reason: FinishReason) {
        let Some(number) = self.owners.remove(&seq) else { return };
        self.live[number] = None;
        self.seated.remove(&number);
        self.run.timelines[number].end = Some((now, reason));
        self.ended += 1;
    }

    fn sample(&mut self) {
        let stats = self.scheduler.stats();
        let seated = self.seated.iter().map(|number| &self.run.timelines[*number]);
        self.run.samples.push(Sample {
            micros: self.runner.now_micros(),
            running: stats.running,
            waiting: stats.waiting,
            blocks_used: stats.blocks_used,
            tokens_held: seated.map(|timeline| timeline.prompt_tokens + timeline.tokens.len()).sum(),
            computing: self.computing.pop_front().unwrap_or(0),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::RequestId;
    use crate::runner::ModelRunner;
    use crate::runner::mock::{MockOptions, MockRunner};
    use crate::sampling::{SamplingParams, SamplingRow};

    fn request(prompt: Vec<TokenId>, max_tokens: u32, arrival_micros: u64) -> NewSequence {
        let row = SamplingRow::new(&SamplingParams::default(), 0, &[]);
        NewSequence { arrival_micros, ..NewSequence::new(RequestId(0), prompt, max_tokens, row) }
    }

    fn driver(max_in_flight: usize) -> Driver<MockRunner> {
        let runner = MockRunner::new(MockOptions::default());
        let config =
            SchedulerConfig { max_in_flight, max_steps: 1, ..SchedulerConfig::for_capacity(&runner.capacity()) };
        Driver::new(config, runner).unwrap()
    }

    #[test]
    fn times_are_those_of_the_runner() {
        let mut driver = driver(1);
        driver.submit(request(vec![1, 2, 3], 3, 5000), None);
        driver.run(&mut |_| ()).unwrap();
        let (run, _) = driver.finish().unwrap();
        // A chunk of three tokens at 10 with its step at 1000, then steps, each with 100 of latency.
        let [timeline] = run.timelines.as_slice() else { panic!("one request") };
        assert_eq!((timeline.arrival_micros, timeline.admitted_micros), (5000, Some(5000)));
        assert_eq!(timeline.token_micros, [6130, 7230, 8330]);
        assert_eq!(timeline.end, Some((8330, FinishReason::Length)));
        assert_eq!((run.micros, run.samples.len(), run.samples[1].tokens_held), (3330, 3, 5));
        let expected = MockOptions::default().continuation(&[1, 2, 3], &request(vec![1], 1, 0).sampling, &[], 6);
        assert_eq!(timeline.tokens, expected);
    }

    #[test]
    fn requests_arrive_by_their_time_and_not_by_their_number() {
        let mut driver = driver(2);
        driver.submit(request(vec![1], 2, 9000), None);
        driver.submit(request(vec![2], 2, 100), None);
        let mut told = Vec::new();
        driver.run(&mut |ended| told.push(ended)).unwrap();
        let (run, _) = driver.finish().unwrap();
        assert!(run.timelines[1].end < run.timelines[0].admitted_micros.map(|at| (at, FinishReason::Stop)));
        assert_eq!(told, [1, 2, 2]);
    }

    #[test]
    fn a_cancelled_request_ends_at_once_and_says_no_more() {
        let mut driver = driver(2);
        let [gone, stays] = [1, 2].map(|token| driver.submit(request(vec![token], 40, 0), None));
        for _ in 0..5 {
            driver.turn().unwrap();
        }
        let before = driver.run.timelines[gone].tokens.len();
        driver.cancel(gone);
        driver.cancel(gone);
        driver.run(&mut |_| ()).unwrap();
        let (run, _) = driver.finish().unwrap();
        assert_eq!(run.timelines[gone].tokens.len(), before);
        assert!(matches!(run.timelines[gone].end, Some((_, FinishReason::Cancelled))));
        assert_eq!(run.timelines[stays].tokens.len(), 40);
        assert_eq!(run.stats.blocks_free, run.stats.blocks_total);
    }

    #[test]
    fn what_can_never_run_is_refused_with_its_reason() {
        let mut driver = driver(1);
        driver.submit(request(vec![], 4, 0), None);
        assert!(driver.run(&mut |_| ()).unwrap_err().to_string().contains("no tokens"));
    }
}
