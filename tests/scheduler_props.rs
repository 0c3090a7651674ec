//! Random lives of the scheduler on the mock runner: arrivals, cancels, lengths, pools, chunks, steps, run-ahead, policies,
//! swapping, device losses. Whatever the mix, each request yields the tokens that it would yield alone, everything ends, and no
//! block is lost. `sim.rs` lives longer and wilder; what fails here shrinks to a small case.

use octavo::base::{RequestId, SeqId, TokenId, rng};
use octavo::runner::mock::{Fault, MockOptions, MockRunner};
use octavo::runner::{ModelRunner, RunError, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::StepPlan;
use octavo::sched::{
    FinishReason, NewSequence, Policy, PreemptReason, Preemption, Released, SchedEvent, Scheduler, SchedulerConfig,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

/// One request and what its user does.
#[derive(Clone, Debug)]
struct Job {
    /// Ticks of the loop before it arrives, after the one before.
    delay: u32,
    /// Prompts of one family share their beginning.
    family: u32,
    /// Tokens of the family, then tokens of its own.
    shared: usize,
    own: usize,
    max_tokens: u32,
    /// The end token stops it: on the device, and in the host's list.
    stops: bool,
    salted: bool,
    score: bool,
    /// Sampled with a seed, rather than greedily.
    seed: Option<u64>,
    /// Ticks after arrival at which the user leaves.
    cancel: Option<u32>,
    priority: i32,
    /// After its arrival.
    deadline: Option<u64>,
}

#[derive(Clone, Debug)]
struct Scenario {
    config: SchedulerConfig,
    options: MockOptions,
    jobs: Vec<Job>,
    /// Decides how eagerly the loop plans and polls.
    pace: u64,
}

const EOS: TokenId = 3;
const MAX_MODEL_LEN: usize = 160;

fn job() -> impl Strategy<Value = Job> {
    let shape = (0..12u32, 0..3u32, 0..70usize, 1..40usize, 1..60u32);
    let flags = (any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.1));
    let rest = (prop::option::weighted(0.3, any::<u64>()), prop::option::weighted(0.2, 0..60u32));
    let urgency = (0..3i32, prop::option::weighted(0.5, 1000..200_000u64));
    (shape, flags, rest, urgency).prop_map(
        |((delay, family, shared, own, max_tokens), (stops, salted, score), (seed, cancel), (priority, deadline))| {
            Job { delay, family, shared, own, max_tokens, stops, salted, score, seed, cancel, priority, deadline }
        },
    )
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let limits = (1..7usize, 7..80usize, prop_oneof![2 => Just(0usize), 1 => 1..33usize]);
    let modes = (prop::bool::weighted(0.85), prop::bool::weighted(0.8), 1..9u16, 1..4usize);
    // The smallest pool holds the longest sequence and little else.
    let device = (10..26u32, prop_oneof![Just(0u32), Just(40)], prop_oneof![4 => Just(0u32), 1 => Just(8)]);
    let faults = prop::option::weighted(0.3, (1..60u64, any::<bool>()));
    // Simplest first: that is where shrinking leads.
    let policies = prop_oneof![
        3 => Just(Policy::Fcfs),
        1 => Just(Policy::Priority),
        1 => Just(Policy::Edf),
        1 => Just(Policy::PhaseSplit)
    ];
    let preemptions = prop_oneof![Just(Preemption::Recompute), Just(Preemption::Swap), Just(Preemption::Auto)];
    let hosts = prop_oneof![2 => Just(0u32), 1 => 1..5u32, 2 => 5..30u32];
    let choices = (policies, preemptions, hosts, any::<bool>(), 1..4usize);
    (limits, modes, device, faults, prop::collection::vec(job(), 1..60), any::<u64>(), choices).prop_map(
        |(
            (seqs, batch, threshold),
            (chunked, cache, steps, in_flight),
            (blocks, eos, bad),
            fault,
            jobs,
            pace,
            (policy, preemption, host_blocks, host_cache, partial),
        )| {
            let config = SchedulerConfig {
                max_num_seqs: seqs,
                max_num_batched_tokens: if chunked { batch } else { MAX_MODEL_LEN },
                max_model_len: MAX_MODEL_LEN,
                long_prefill_token_threshold: if chunked { threshold } else { 0 },
                chunked_prefill: chunked,
                prefix_cache: cache,
                max_steps: steps,
                max_in_flight: in_flight,
                policy,
                aging_micros: 20_000,
                preemption: if host_blocks > 0 { preemption } else { Preemption::Recompute },
                host_cache: host_cache && cache && host_blocks > 0,
                max_num_partial_prefills: if chunked { partial } else { 1 },
                ..SchedulerConfig::for_capacity(&MockOptions::default().capacity)
            };
            let mut options =
                MockOptions { eos: EOS, eos_per_mille: eos, bad_logits_per_mille: bad, ..Default::default() };
            options.capacity.block_count = blocks;
            options.capacity.host_blocks = host_blocks;
            options.fault = fault.map(|(epoch, at_submit)| {
                let epoch = octavo::base::Epoch(epoch);
                if at_submit { Fault::LostAtSubmit(epoch) } else { Fault::LostAtPoll(epoch) }
            });
            Scenario { config, options, jobs, pace }
        },
    )
}

impl Job {
    fn request(&self, index: usize) -> NewSequence {
        // Families use ids from 10 on, own tokens depend on the job: two jobs seldom agree beyond the shared part.
        let shared = (0..self.shared as u32).map(|at| 10 + self.family * 100 + at);
        let own = (0..self.own as u32).map(|at| 500 + (index as u32 * 37 + at * 7) % 400);
        let stop_tokens = if self.stops { vec![EOS] } else { vec![] };
        let params = SamplingParams { temperature: if self.seed.is_some() { 1.0 } else { 0.0 }, ..Default::default() };
        let sampling = SamplingRow::new(&params, self.seed.unwrap_or(0), &stop_tokens);
        let prompt = shared.chain(own).collect();
        NewSequence {
            stop_tokens,
            cache_salt: self.salted.then(|| "salt".to_string()),
            score: self.score,
            priority: self.priority,
            ..NewSequence::new(RequestId(index as u64), prompt, self.max_tokens, sampling)
        }
    }
}

/// What the host saw of one sequence.
#[derive(Debug, Default)]
struct Seen {
    tokens: Vec<TokenId>,
    scores: Vec<(u32, f64)>,
    end: Option<FinishReason>,
    admissions: usize,
    cancelled: bool,
    /// Smaller is more urgent; the order of arrival breaks ties.
    rank: i64,
}

#[derive(Debug, Default)]
struct Trace {
    plans: Vec<String>,
    seen: BTreeMap<SeqId, Seen>,
    preemptions: u64,
    cached_tokens: usize,
    losses: usize,
    swaps: usize,
    /// Short prompts may pass a long one that waits for its turn.
    may_pass: bool,
}

impl Trace {
    /// Checks the order of events as they come. `running` mirrors the order of admission.
    fn take(&mut self, events: &mut Vec<SchedEvent>, running: &mut Vec<SeqId>, waiting: &mut Vec<SeqId>) {
        // By urgency.
        let key = |seen: &BTreeMap<SeqId, Seen>, seq: &SeqId| (seen[seq].rank, *seq);
        waiting.sort_by_key(|seq| key(&self.seen, seq));
        running.sort_by_key(|seq| key(&self.seen, seq));
        for event in events.drain(..) {
            match event {
                SchedEvent::Admitted { seq, cached_tokens, .. } => {
                    if !self.may_pass {
                        assert_eq!(waiting.first(), Some(&seq), "the most urgent first");
                    }
                    waiting.retain(|other| *other != seq);
                    running.push(seq);
                    running.sort_by_key(|seq| key(&self.seen, seq));
                    self.cached_tokens += cached_tokens;
                    self.seen.get_mut(&seq).expect("added").admissions += 1;
                }
                SchedEvent::Preempted { seq, reason, how, .. } => {
                    running.retain(|other| *other != seq);
                    waiting.push(seq);
                    waiting.sort_by_key(|seq| key(&self.seen, seq));
                    if let PreemptReason::NoBlock { wanted_by } = reason {
                        let spared = running.last().filter(|last| **last != wanted_by);
                        let least = spared.is_none_or(|last| key(&self.seen, last) < key(&self.seen, &seq));
                        assert!(least, "{seq} gives way, but {spared:?} is less urgent");
                        self.preemptions += 1;
                        self.swaps += usize::from(matches!(how, Released::Swapped { .. }));
                    }
                }
                SchedEvent::Token { seq, token, .. } => {
                    let seen = self.seen.get_mut(&seq).expect("added");
                    assert!(seen.end.is_none() && !seen.cancelled, "a token after the end");
                    seen.tokens.push(token);
                }
                SchedEvent::Score { seq, position, logprob, .. } => {
                    self.seen.get_mut(&seq).expect("added").scores.push((position, logprob));
                }
                SchedEvent::Finished { seq, reason } => {
                    let seen = self.seen.get_mut(&seq).expect("added");
                    assert!(seen.end.replace(reason).is_none() && !seen.cancelled, "two ends");
                    running.retain(|other| *other != seq);
                    waiting.retain(|other| *other != seq);
                }
                SchedEvent::Arrived { .. }
                | SchedEvent::Chunk { .. }
                | SchedEvent::Decode { .. }
                | SchedEvent::Evicted { .. }
                | SchedEvent::Copied { .. } => {}
            }
        }
    }
}

/// Ticks within which any of these workloads must be through; the longest takes a tenth.
const MAX_TICKS: u32 = 40_000;

/// Runs a scenario to its end, checking invariants all the way.
fn live(scenario: &Scenario) -> Trace {
    let Scenario { config, options, jobs, pace } = scenario;
    let mut runner = MockRunner::new(options.clone());
    let mut scheduler = Scheduler::new(config.clone(), options.capacity).expect("the config is sound");
    let may_pass = config.long_prefill_token_threshold > 0 && config.max_num_partial_prefills > 1;
    let mut trace = Trace { may_pass, ..Trace::default() };
    let (mut running, mut waiting) = (Vec::new(), Vec::new());
    let (mut plan, mut result, mut events) = (StepPlan::default(), StepResult::default(), Vec::new());
    let mut arrivals = Vec::new();
    let mut due = 0;
    for (index, job) in jobs.iter().enumerate() {
        due += job.delay;
        arrivals.push((due, index));
    }
    let mut departures: Vec<(u32, SeqId)> = Vec::new();
    for tick in 0.. {
        assert!(tick < MAX_TICKS, "no end in sight: {:?}", scheduler.stats());
        for (_, index) in arrivals.extract_if(.., |(due, _)| *due <= tick) {
            let now = runner.now_micros();
            let mut new = jobs[index].request(index);
            (new.arrival_micros, new.deadline_micros) = (now, jobs[index].deadline.map(|after| now + after));
            let rank = match config.policy {
                Policy::Fcfs | Policy::PhaseSplit => 0,
                Policy::Priority => now as i64 + i64::from(new.priority) * config.aging_micros as i64,
                Policy::Edf => new.deadline_micros.unwrap_or(now + config.deadline_micros) as i64,
            };
            let id = scheduler.add(new, &mut events).expect("the pool holds any of these");
            assert_eq!(id, SeqId(index as u64));
            waiting.push(id);
            trace.seen.insert(id, Seen { rank, ..Seen::default() });
            departures.extend(jobs[index].cancel.map(|after| (tick + after, id)));
        }
        for (_, id) in departures.extract_if(.., |(due, _)| *due <= tick) {
            scheduler.finish(id);
            scheduler.check();
            running.retain(|other| *other != id);
            waiting.retain(|other| *other != id);
            let seen = trace.seen.get_mut(&id).expect("added");
            seen.cancelled = seen.end.is_none();
        }
        let dice = rng::token_word(*pace, tick);
        let mut lost = false;
        for _ in 0..dice % 3 + 1 {
            let scheduled = scheduler.schedule(&mut plan, &mut events);
            scheduler.check();
            trace.take(&mut events, &mut running, &mut waiting);
            if !scheduled {
                break;
            }
            scheduler.check_plan(&plan);
            trace.plans.push(plan.to_string());
            match runner.submit(&plan) {
                Ok(()) => {}
                Err(RunError::DeviceLost(_)) => lost = true,
                Err(error) => panic!("plan {plan}: {error}"),
            }
            if lost {
                break;
            }
        }
        if !lost {
            let wait = if dice & 8 == 0 { Wait::No } else { Wait::AtMost(Duration::from_micros(1500)) };
            match runner.poll(wait, &mut result) {
                Ok(true) => {
                    scheduler.commit(&result, &mut events);
                    scheduler.check();
                    trace.take(&mut events, &mut running, &mut waiting);
                }
                Ok(false) => {}
                Err(RunError::DeviceLost(_)) => lost = true,
                Err(error) => panic!("{error}"),
            }
        }
        if lost {
            trace.losses += 1;
            scheduler.requeue_all(&mut events);
            scheduler.check();
            trace.take(&mut events, &mut running, &mut waiting);
            assert!(running.is_empty(), "nobody runs on a lost device");
            let now = runner.now_micros();
            runner = MockRunner::new(MockOptions { fault: None, ..options.clone() });
            runner.advance(now);
        }
        if arrivals.is_empty() && !scheduler.has_work() {
            break;
        }
    }
    // Host blocks that the last plan loaded from are let go when the next one is asked for.
    assert!(!scheduler.schedule(&mut plan, &mut events), "there is nothing left to plan");
    let stats = scheduler.stats();
    assert_eq!((stats.waiting, stats.running, stats.in_flight), (0, 0, 0));
    assert_eq!((stats.blocks_free, stats.host_used), (stats.blocks_total, 0), "blocks leaked");
    assert_eq!(stats.preemptions, trace.preemptions);
    trace
}

/// Compares what came with what each request yields alone.
fn judge(scenario: &Scenario, trace: &Trace) {
    for (index, job) in scenario.jobs.iter().enumerate() {
        let NewSequence { prompt, sampling, stop_tokens, .. } = job.request(index);
        let limit = (prompt.len() + job.max_tokens as usize).min(MAX_MODEL_LEN);
        let alone = scenario.options.continuation(&prompt, &sampling, &stop_tokens, limit);
        let seen = &trace.seen[&SeqId(index as u64)];
        if seen.cancelled {
            assert!(alone.starts_with(&seen.tokens), "job {index}: {:?} is no part of {alone:?}", seen.tokens);
            continue;
        }
        assert_eq!(seen.tokens, alone, "job {index}");
        let reason = match alone.last() {
            Some(last) if stop_tokens.contains(last) => FinishReason::Stop,
            _ if prompt.len() + alone.len() == limit => FinishReason::Length,
            _ => FinishReason::Error,
        };
        assert_eq!(seen.end, Some(reason), "job {index}");
        assert!(seen.admissions > 0);
        let scored = if job.score { 1..prompt.len() } else { 0..0 };
        let scores: Vec<_> = scored.map(|at| (at as u32, MockOptions::logprob(prompt[at]))).collect();
        assert_eq!(seen.scores, scores, "job {index}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_yields_what_it_yields_alone_and_nothing_leaks(scenario in scenario()) {
        let trace = live(&scenario);
        judge(&scenario, &trace);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_calls_give_the_same_plans(scenario in scenario()) {
        prop_assert_eq!(live(&scenario).plans, live(&scenario).plans);
    }
}

/// The random workloads would prove little if they never got into trouble.
#[test]
fn the_scenarios_reach_preemption_hits_losses_and_several_steps() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut random = TestRunner::deterministic();
    let (mut preempted, mut hit, mut lost, mut multi, mut steps, mut swapped) = (0, 0, 0, 0, 0, 0);
    for _ in 0..60 {
        let trace = live(&scenario().new_tree(&mut random).expect("a scenario").current());
        preempted += usize::from(trace.preemptions > 1);
        hit += usize::from(trace.cached_tokens > 0);
        lost += trace.losses;
        multi += usize::from(trace.plans.iter().any(|plan| plan.contains(" x4") || plan.contains(" x8")));
        steps += trace.plans.len();
        swapped += usize::from(trace.swaps > 0);
    }
    assert!(preempted >= 10, "{preempted} of 60 scenarios preempt repeatedly");
    assert!(hit >= 20, "{hit} of 60 scenarios hit the cache");
    assert!(lost >= 8, "{lost} of 60 scenarios lose the device");
    assert!(multi >= 10, "{multi} of 60 scenarios run several steps");
    assert!(swapped >= 5, "{swapped} of 60 scenarios swap");
    assert!(steps >= 60 * 100, "{steps} plans");
}
