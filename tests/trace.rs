//! Traces of the scheduler: written while it runs, read back, replayed, drawn.

use octavo::base::{RequestId, SeqId, TokenId};
use octavo::error::ErrorKind;
use octavo::runner::mock::{Fault, MockOptions, MockRunner};
use octavo::runner::{Capacity, Costs, ModelRunner, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::StepPlan;
use octavo::sched::{NewSequence, Pause, Policy, Preemption, SchedEvent, Scheduler, SchedulerConfig, SchedulerStats};
use octavo::trace::{Call, Phase, Replayed, Summary, Timeline, TraceReader, Tracer, replay};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

mod common {
    pub mod drive;
}
use common::drive::Dice;

/// A file in memory that can be read while somebody else writes it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A scheduler and a mock, with or without a tracer.
struct Rig {
    scheduler: Scheduler,
    runner: MockRunner,
    tracer: Option<Tracer>,
    plan: StepPlan,
    result: StepResult,
    events: Vec<SchedEvent>,
    /// What was seen, for comparisons.
    tokens: HashMap<SeqId, Vec<TokenId>>,
    plans: u64,
}

impl Rig {
    fn new(config: &SchedulerConfig, options: MockOptions, out: Option<Box<dyn Write + Send>>) -> Self {
        let capacity = options.capacity;
        Self {
            scheduler: Scheduler::new(config.clone(), capacity).unwrap(),
            runner: MockRunner::new(options),
            tracer: out.map(|out| Tracer::new(config, &capacity, out).unwrap()),
            plan: StepPlan::default(),
            result: StepResult::default(),
            events: Vec::new(),
            tokens: HashMap::new(),
            plans: 0,
        }
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.runner.now_micros())
    }

    fn add(&mut self, new: NewSequence) -> SeqId {
        let seq = self.scheduler.add(new.clone(), &mut self.events).unwrap();
        self.told(Call::Add { new: &new, seq });
        seq
    }

    fn told(&mut self, call: Call<'_>) {
        let at = self.now();
        if let Some(tracer) = &mut self.tracer {
            tracer.call(at, call);
            tracer.events(at, &self.events, &self.scheduler.stats());
        }
        for event in self.events.drain(..) {
            if let SchedEvent::Token { seq, token, .. } = event {
                self.tokens.entry(seq).or_default().push(token);
            }
        }
    }

    fn schedule(&mut self) -> bool {
        let mut plan = std::mem::take(&mut self.plan);
        let planned = self.scheduler.schedule(&mut plan, &mut self.events);
        self.plans += u64::from(planned);
        self.told(Call::Schedule { plan: planned.then_some(&plan) });
        if planned {
            self.runner.submit(&plan).unwrap();
        }
        self.plan = plan;
        planned
    }

    fn commit(&mut self) -> bool {
        let mut result = std::mem::take(&mut self.result);
        let came = self.runner.poll(Wait::AtMost(Duration::from_secs(60)), &mut result).unwrap();
        if came {
            self.scheduler.commit(&result, &mut self.events);
            self.told(Call::Commit { result: &result });
        }
        self.result = result;
        came
    }

    fn finish(&mut self, seq: SeqId) {
        self.scheduler.finish(seq);
        self.told(Call::Finish { seq });
    }

    /// Runs until nothing is left.
    fn run_out(&mut self) {
        while self.scheduler.has_work() {
            while self.schedule() {}
            assert!(self.commit(), "stuck");
        }
    }
}

fn request(id: u64, prompt: Vec<TokenId>, max_tokens: u32) -> NewSequence {
    let sampling = SamplingRow::new(&SamplingParams::greedy(max_tokens), id, &[]);
    NewSequence::new(RequestId(id), prompt, max_tokens, sampling)
}

fn small(block_count: u32, host_blocks: u32) -> MockOptions {
    let mut options = MockOptions::default();
    options.capacity = Capacity { block_count, host_blocks, max_batched_tokens: 64, ..options.capacity };
    options
}

/// Scheduler options of all kinds.
fn random_config(dice: &mut Dice, capacity: &Capacity) -> SchedulerConfig {
    let policies = [Policy::Fcfs, Policy::Priority, Policy::Edf, Policy::PhaseSplit];
    let preemptions = [Preemption::Recompute, Preemption::Swap, Preemption::Auto];
    let prefix_cache = dice.below(4) > 0;
    SchedulerConfig {
        long_prefill_token_threshold: [0, 8, 20][dice.below(3) as usize],
        prefix_cache,
        host_cache: prefix_cache && capacity.host_blocks > 0 && dice.below(2) == 0,
        max_steps: 1 + dice.below(8) as u16,
        max_in_flight: 1 + dice.below(3) as usize,
        policy: policies[dice.below(4) as usize],
        preemption: if capacity.host_blocks > 0 { preemptions[dice.below(3) as usize] } else { Preemption::Recompute },
        ..SchedulerConfig::for_capacity(capacity)
    }
}

/// A run of everything that a scheduler can be told. Returns the rig with its tracer closed, and the trace.
fn random_run(seed: u64) -> (Rig, Vec<u8>) {
    let dice = &mut Dice(seed);
    let host_blocks = [0, 6, 40][dice.below(3) as usize];
    let mut options = small(12 + dice.below(20) as u32, host_blocks);
    (options.seed, options.eos_per_mille) = (seed, 20);
    let config = random_config(dice, &options.capacity);
    let file = Shared::default();
    let mut rig = Rig::new(&config, options, Some(Box::new(file.clone())));
    let mut alive: Vec<SeqId> = Vec::new();
    for step in 0..150u64 {
        match dice.below(20) {
            0..=5 => {
                let shared = 16 * dice.below(3) as u32;
                let own = 1 + dice.below(40) as u32;
                let prompt: Vec<TokenId> = (1..=shared).chain((0..own).map(|_| 1 + dice.below(900) as u32)).collect();
                let new = NewSequence {
                    stop_tokens: vec![0],
                    arrival_micros: rig.runner.now_micros(),
                    priority: dice.below(3) as i32 - 1,
                    deadline_micros: (dice.below(2) == 0).then(|| rig.runner.now_micros() + dice.below(50_000)),
                    cache_salt: (dice.below(4) == 0).then(|| "salt".to_owned()),
                    held: dice.below(10) == 0,
                    ..request(step, prompt, 1 + dice.below(40) as u32)
                };
                let held = new.held;
                let seq = rig.add(new.clone());
                if held {
                    rig.scheduler.release(seq);
                    rig.told(Call::Release { seq });
                }
                if dice.below(4) == 0 {
                    let fork = NewSequence { fork_of: Some(seq), held: false, ..new };
                    alive.push(rig.add(fork));
                }
                alive.push(seq);
            }
            6 if !alive.is_empty() => {
                let index = dice.below(alive.len() as u64) as usize;
                let seq = alive.swap_remove(index);
                rig.finish(seq);
            }
            7 => {
                let preempt = dice.below(2) == 0;
                if rig.scheduler.reset_prefix_cache(preempt, &mut rig.events).is_ok() {
                    rig.told(Call::Reset { preempt });
                }
            }
            8 => {
                let steps = 1 + dice.below(8) as u16;
                rig.scheduler.set_step_limit(steps);
                rig.told(Call::StepLimit(steps));
                let tokens = [1, 5, u32::MAX][dice.below(3) as usize];
                rig.scheduler.set_prompt_limit(tokens);
                rig.told(Call::PromptLimit(tokens));
            }
            9 => {
                let costs = Costs {
                    prefill_micros_per_token: dice.below(100) as f32 * 0.1,
                    move_micros_per_block: dice.below(100) as f32 * 0.3,
                };
                rig.scheduler.set_costs(costs);
                rig.told(Call::Costs(costs));
            }
            10 => {
                for pause in [[Pause::New, Pause::All][dice.below(2) as usize], Pause::None] {
                    rig.scheduler.set_pause(pause);
                    rig.told(Call::Pause(pause));
                    rig.schedule();
                }
            }
            _ => {
                rig.schedule();
                if dice.below(2) == 0 {
                    rig.commit();
                }
            }
        }
    }
    rig.run_out();
    rig.tracer.take().unwrap().finish().unwrap();
    (rig, file.bytes())
}

fn reader(bytes: &[u8]) -> octavo::Result<TraceReader> {
    TraceReader::new(Box::new(io::Cursor::new(bytes.to_vec())), "run.json")
}

fn replayed(bytes: &[u8]) -> octavo::Result<Replayed> {
    replay(&mut reader(bytes)?)
}

fn same(bytes: &[u8]) -> Summary {
    match replayed(bytes).unwrap() {
        Replayed::Same(summary) => summary,
        Replayed::Differs(difference) => panic!("{difference:#?}"),
    }
}

fn timeline(bytes: &[u8]) -> Timeline {
    Timeline::read(&mut reader(bytes).unwrap()).unwrap()
}

/// Three requests that share too few blocks, and one that is cancelled.
fn short_run() -> (Rig, Vec<u8>) {
    let file = Shared::default();
    let options = small(8, 0);
    let config = SchedulerConfig { max_num_seqs: 3, ..SchedulerConfig::for_capacity(&options.capacity) };
    let mut rig = Rig::new(&config, options, Some(Box::new(file.clone())));
    for id in 0..4 {
        rig.add(request(id, (0..40).map(|token| token + 50 * id as u32).collect(), 30));
    }
    rig.schedule();
    rig.finish(SeqId(3));
    rig.run_out();
    rig.tracer.take().unwrap().finish().unwrap();
    (rig, file.bytes())
}

#[test]
fn a_replay_makes_the_same_plans_whatever_was_called() {
    let mut preemptions = 0;
    for seed in 0..60 {
        let (rig, bytes) = random_run(seed);
        let summary = same(&bytes);
        let stats = rig.scheduler.stats();
        let tokens: usize = rig.tokens.values().map(Vec::len).sum();
        assert_eq!((summary.plans, summary.steps), (rig.plans, stats.steps), "seed {seed}");
        assert_eq!(summary.preemptions, stats.preemptions, "seed {seed}");
        assert!(summary.tokens as usize >= tokens && !summary.truncated, "seed {seed}");
        assert!(summary.sequences > 0 && summary.calls > summary.plans, "seed {seed}");
        preemptions += summary.preemptions;
    }
    assert!(preemptions > 50, "only {preemptions} preemptions in all runs: they test little");
}

#[test]
fn a_lost_device_is_part_of_the_trace() {
    let file = Shared::default();
    let options = small(32, 0);
    let config = SchedulerConfig::for_capacity(&options.capacity);
    let mut rig = Rig::new(&config, options.clone(), Some(Box::new(file.clone())));
    rig.add(request(0, vec![1, 2, 3], 20));
    rig.schedule();
    rig.commit();
    rig.schedule();
    // The result of that submission never comes.
    rig.scheduler.requeue_all(&mut rig.events);
    rig.told(Call::Requeue);
    let now = rig.runner.now_micros();
    rig.runner = MockRunner::new(options);
    rig.runner.advance(now);
    rig.run_out();
    rig.tracer.take().unwrap().finish().unwrap();
    assert_eq!(same(&file.bytes()).plans, rig.plans);
    let timeline = timeline(&file.bytes());
    let phases: Vec<Phase> = timeline.rows[0].spans.iter().map(|span| span.phase).collect();
    assert_eq!(phases, [Phase::Waiting, Phase::Prefill, Phase::Preempted, Phase::Recompute, Phase::Decode]);
    assert_eq!(timeline.tokens, 20);
}

#[test]
fn the_first_different_plan_is_shown() {
    let (_, bytes) = short_run();
    let text = String::from_utf8(bytes).unwrap();
    let plans: Vec<&str> = text.lines().filter(|line| line.contains("\"plan\":\"#")).collect();
    let line = plans[4];
    let changed = line.replace(" decode 0@", " decode 7@");
    assert_ne!(changed, line, "{line}");
    let Replayed::Differs(difference) = replayed(text.replace(line, &changed).as_bytes()).unwrap() else {
        panic!("the change went unnoticed")
    };
    assert_eq!(difference.plans, 4);
    assert!(difference.recorded.contains(" decode 7@") && difference.replayed.contains(" decode 0@"), "{difference:?}");
    // The same workload under other rules.
    let other = text.replacen("\"max_num_batched_tokens\":64", "\"max_num_batched_tokens\":48", 1);
    assert!(matches!(replayed(other.as_bytes()), Ok(Replayed::Differs(_))));
    // A plan where none was, and none where one was.
    let line = plans[2];
    let start = line.find("\"plan\":\"").unwrap();
    let none = line[..start].to_owned() + "\"times\":1}},";
    let Replayed::Differs(difference) = replayed(text.replace(line, &none).as_bytes()).unwrap() else { panic!() };
    assert_eq!((difference.plans, difference.recorded.as_str()), (2, "nothing to submit"));
}

#[test]
fn a_torn_trace_is_read_as_far_as_it_goes() {
    let (_, bytes) = short_run();
    let whole = same(&bytes);
    let header_end = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(1).unwrap().0;
    let (mut calls, mut tokens) = (0, 0);
    for cut in (header_end..bytes.len() - 2).step_by(97) {
        let summary = same(&bytes[..cut]);
        assert!(summary.truncated && summary.calls >= calls, "{cut}");
        calls = summary.calls;
        let timeline = timeline(&bytes[..cut]);
        assert!(timeline.truncated && timeline.tokens >= tokens, "{cut}");
        tokens = timeline.tokens;
    }
    assert!(calls + 3 > whole.calls, "{calls} of {}", whole.calls);
    // Only the closing bracket is missing.
    assert_eq!(Summary { truncated: false, ..same(&bytes[..bytes.len() - 3]) }, whole);
}

#[test]
fn a_process_that_is_killed_leaves_all_but_the_last_moment() {
    let file = Shared::default();
    let options = small(32, 0);
    let config = SchedulerConfig::for_capacity(&options.capacity);
    let mut rig = Rig::new(&config, options, Some(Box::new(file.clone())));
    rig.add(request(0, vec![1; 30], 400));
    while rig.now() < Duration::from_millis(350) {
        rig.schedule();
        rig.commit();
    }
    // The tracer still holds what came after the last flush.
    let summary = same(&file.bytes());
    assert!(summary.truncated && summary.span >= Duration::from_millis(150), "{summary:?}");
}

#[test]
fn files_that_are_no_trace_are_refused_with_the_reason() {
    let (_, bytes) = short_run();
    let text = String::from_utf8(bytes).unwrap();
    let newer = text.replacen("\"format\":1,\"version\":\"", "\"format\":2,\"version\":\"9.", 1);
    let fewer_options = text.replacen("\"watermark\":", "\"unknown\":", 1);
    let impossible = text.replacen("\"max_num_seqs\":3", "\"max_num_seqs\":0", 1);
    let huge = text.replacen("\"block_count\":8", "\"block_count\":4294967295", 1);
    let cases: [(&str, &[&str]); 9] = [
        ("", &["run.json is no trace", "empty"]),
        ("{\"a\": 1}\n", &["run.json is no trace", "does not begin like one"]),
        ("[\n{\"ph\":\"B\",\"name\":\"x\"}\n]\n", &["no trace of octavo", "second line"]),
        ("[\n", &["no trace of octavo"]),
        ("\u{0}\u{1}\u{2}", &["no trace of octavo"]),
        (&newer, &["format 2", "octavo 9.", "reads format 1"]),
        (&fewer_options, &["other options", "watermark"]),
        (&impossible, &["header that is refused", "max_num_seqs is 0"]),
        (&huge, &["4294967295 KV blocks"]),
    ];
    for (file, expected) in cases {
        let error = replayed(file.as_bytes()).unwrap_err();
        let message = error.to_string();
        assert!(expected.iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(error.kind(), ErrorKind::Load, "{message}");
    }
}

#[test]
fn damage_is_named_by_its_line_and_never_a_panic() {
    let (_, bytes) = short_run();
    let text = String::from_utf8(bytes).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let commit = lines.iter().position(|line| line.contains("\"call\":\"commit\"")).unwrap();
    let add = lines.iter().position(|line| line.contains("\"call\":\"add\"")).unwrap();
    let edit = |at: usize, new: String| {
        let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        lines[at] = new;
        lines.join("\n")
    };
    let cases = [
        (commit, lines[commit].replacen("\"epoch\":1", "\"epoch\":9", 1), "does not answer the plan"),
        (commit, lines[commit].replacen("\"tokens\":[", "\"tokens\":[[0,0,1],[0,0,1],", 1), "does not answer the plan"),
        (commit, lines[commit].replacen("\"tokens\":[", "\"tokens\":[[99,0,1],", 1), "does not answer the plan"),
        (commit, lines[commit].replacen("\"call\":\"commit\"", "\"call\":\"dance\"", 1), "dance"),
        (commit, "{\"ph\":".to_owned(), "EOF"),
        (add, lines[add].replacen("\"prompt\":[", "\"prompt\":[100000,", 1), "token 100000"),
    ];
    for (at, line, expected) in cases {
        assert_ne!(line, lines[at]);
        let message = replayed(edit(at, line).as_bytes()).unwrap_err().to_string();
        assert!(message.contains(&format!("line {}", at + 1)) && message.contains(expected), "{message}");
    }
    // Every single call left out: a difference, a refusal, or nothing that mattered.
    for at in 2..lines.len() - 1 {
        let _ = replayed(edit(at, String::new()).as_bytes());
    }
}

/// Takes so many bytes and then is full.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.0 {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on device"));
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_the_trace_and_nothing_else() {
    let options = small(10, 0);
    let config = SchedulerConfig::for_capacity(&options.capacity);
    let run = |out: Option<Box<dyn Write + Send>>| {
        let mut rig = Rig::new(&config, options.clone(), out);
        for id in 0..6 {
            rig.add(request(id, (0..30).map(|token| token * 3 + id as u32).collect(), 60));
        }
        rig.run_out();
        let end = rig.tracer.take().map(Tracer::finish);
        (rig.tokens, rig.plans, end)
    };
    let (tokens, plans, none) = run(None);
    let (traced, traced_plans, end) = run(Some(Box::new(Full(5000))));
    assert_eq!((&tokens, plans), (&traced, traced_plans));
    assert!(none.is_none());
    let message = end.unwrap().unwrap_err().to_string();
    assert!(message.contains("no space left on device") && message.contains("everything else goes on"), "{message}");
    let refused = Tracer::new(&config, &options.capacity, Box::new(Full(10))).unwrap_err();
    assert!(refused.to_string().contains("no space left"), "{refused}");
}

#[test]
fn a_dropped_tracer_leaves_a_whole_file() {
    let file = Shared::default();
    let options = small(8, 0);
    let mut rig = Rig::new(&SchedulerConfig::for_capacity(&options.capacity), options, Some(Box::new(file.clone())));
    rig.add(request(0, vec![1, 2], 3));
    rig.run_out();
    rig.schedule();
    drop(rig);
    assert!(!same(&file.bytes()).truncated);
    serde_json::from_slice::<Value>(&file.bytes()).unwrap();
}

#[test]
fn calls_that_plan_nothing_are_counted_and_repeats_left_out() {
    let file = Shared::default();
    let options = small(8, 0);
    let mut rig = Rig::new(&SchedulerConfig::for_capacity(&options.capacity), options, Some(Box::new(file.clone())));
    for _ in 0..1000 {
        rig.schedule();
        rig.scheduler.set_step_limit(3);
        rig.told(Call::StepLimit(3));
        rig.told(Call::PromptLimit(u32::MAX));
    }
    rig.add(request(0, vec![1, 2], 3));
    rig.run_out();
    rig.tracer.take().unwrap().finish().unwrap();
    let text = String::from_utf8(file.bytes()).unwrap();
    assert_eq!(text.matches("\"call\":\"step_limit\"").count(), 1);
    assert_eq!(text.matches("\"call\":\"prompt_limit\"").count(), 1);
    assert!(text.contains("\"times\":999"), "{text}");
    assert!(text.len() < 10_000, "{}", text.len());
    same(&file.bytes());
}

/// What Chrome's format asks for, and what we promise on top.
#[test]
fn every_track_is_well_formed() {
    for seed in 0..30 {
        let (rig, bytes) = random_run(seed);
        let Value::Array(events) = serde_json::from_slice(&bytes).unwrap() else { panic!("not an array") };
        let mut open: HashMap<(u64, u64), (String, f64)> = HashMap::new();
        let mut free_from: HashMap<(u64, u64), f64> = HashMap::new();
        let mut spans: Vec<((u64, u64), f64, f64)> = Vec::new();
        let (mut begun, mut finished) = (0, 0);
        for event in &events {
            let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
            let (name, ts) = (event["name"].as_str().unwrap(), event["ts"].as_f64().unwrap());
            match event["ph"].as_str().unwrap() {
                "B" => {
                    begun += usize::from(name == "waiting");
                    assert_eq!(open.insert(track, (name.into(), ts)), None, "seed {seed}: {event}");
                }
                "E" => {
                    let (begin, from) = open.remove(&track).unwrap_or_else(|| panic!("seed {seed}: {event}"));
                    assert_eq!(begin, name, "seed {seed}");
                    spans.push((track, from, ts));
                }
                "X" => spans.push((track, ts, ts + event["dur"].as_f64().unwrap())),
                "i" => {
                    assert_eq!(event["s"], "t");
                    finished += usize::from(name == "finished");
                }
                "C" => {
                    let sum =
                        |names: [&str; 2]| names.iter().map(|name| event["args"][name].as_u64().unwrap()).sum::<u64>();
                    if name == "KV blocks" {
                        assert!(sum(["used", "free"]) <= u64::from(rig.runner.capacity().block_count), "{event}");
                    }
                }
                "M" => {}
                other => panic!("{other}"),
            }
        }
        assert!(open.is_empty(), "seed {seed}: {open:?}");
        assert!(begun > 0 && begun == finished, "seed {seed}: {begun} sequences began and {finished} ended");
        spans.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.2.total_cmp(&b.2)));
        for (track, from, to) in spans {
            let free = free_from.entry(track).or_default();
            assert!(from >= *free - 1e-6 && to >= from, "seed {seed}: track {track:?} does two things at {from}");
            *free = to;
        }
    }
}

#[test]
fn a_timeline_says_what_happened() {
    for seed in 0..30 {
        let (rig, bytes) = random_run(seed);
        let SchedulerStats { preemptions, swaps_out, .. } = rig.scheduler.stats();
        let timeline = timeline(&bytes);
        assert_eq!(timeline.preemptions + timeline.swaps, preemptions, "seed {seed}");
        assert_eq!(timeline.swaps, swaps_out, "seed {seed}");
        assert_eq!(timeline.submissions.len() as u64, rig.plans, "seed {seed}");
        for row in &timeline.rows {
            let ending = row.ending.as_ref().unwrap();
            let tokens = rig.tokens.get(&SeqId(row.seq)).map_or(0, Vec::len) as u64;
            assert_eq!(ending.tokens, tokens, "seed {seed}, sequence {}", row.seq);
            assert_eq!(row.spans[0].phase, Phase::Waiting, "seed {seed}");
            let last = row.spans.last().unwrap();
            assert!(last.to <= ending.at + 1e-9 && ending.at <= timeline.end, "seed {seed}");
        }
    }
}

#[test]
fn the_phases_of_a_request_follow_each_other() {
    let (rig, bytes) = short_run();
    let timeline = timeline(&bytes);
    let phases = |index: usize| timeline.rows[index].spans.iter().map(|span| span.phase).collect::<Vec<_>>();
    // 40 of 64 tokens of a step go to the first prompt and the rest to the second.
    assert_eq!(phases(0), [Phase::Waiting, Phase::Prefill, Phase::Decode]);
    let second = &timeline.rows[1];
    assert_eq!(phases(1)[..3], [Phase::Waiting, Phase::Prefill, Phase::Prefill]);
    assert_eq!((second.spans[1].tokens, second.spans[2].tokens), (24, 16));
    // The first of 30 tokens came of the prompt.
    let (decode, ending) = (timeline.rows[0].spans[2], timeline.rows[0].ending.as_ref().unwrap());
    assert_eq!((decode.tokens, ending.tokens, ending.reason.as_str()), (29, 30, "length"));
    assert_eq!(timeline.rows[3].ending.as_ref().unwrap().reason, "ended by the host");
    assert_eq!(phases(3), [Phase::Waiting]);
    // Eight blocks are too few for three sequences of five blocks each.
    let preempted = timeline.rows.iter().filter(|row| row.spans.iter().any(|span| span.phase == Phase::Preempted));
    assert!(preempted.count() > 0 && rig.scheduler.stats().preemptions > 0);
    let most = timeline.counts.iter().map(|(_, counts)| counts.used).max();
    assert_eq!(most, Some(8));
}

#[test]
fn a_sequence_that_is_cancelled_at_once_ends_in_the_trace() {
    // Drivers may hand on events later than calls: here the arrival comes after the end.
    let file = Shared::default();
    let options = small(8, 0);
    let mut rig = Rig::new(&SchedulerConfig::for_capacity(&options.capacity), options, Some(Box::new(file.clone())));
    let new = request(0, vec![1, 2], 3);
    let seq = rig.scheduler.add(new.clone(), &mut rig.events).unwrap();
    rig.scheduler.finish(seq);
    rig.tracer.as_mut().unwrap().call(Duration::ZERO, Call::Add { new: &new, seq });
    rig.told(Call::Finish { seq });
    rig.run_out();
    rig.tracer.take().unwrap().finish().unwrap();
    let timeline = timeline(&file.bytes());
    assert_eq!(timeline.rows.len(), 1);
    assert_eq!(timeline.rows[0].ending.as_ref().unwrap().reason, "ended by the host");
    same(&file.bytes());
}

#[test]
fn a_mock_that_loses_its_device_leaves_a_trace_to_replay() {
    // The fault strikes at submission: the plan was made, so the trace holds it, and no result follows.
    let file = Shared::default();
    let mut options = small(32, 0);
    options.fault = Some(Fault::LostAtSubmit(octavo::base::Epoch(3)));
    let config = SchedulerConfig::for_capacity(&options.capacity);
    let mut rig = Rig::new(&config, options, Some(Box::new(file.clone())));
    rig.add(request(0, vec![1, 2, 3], 200));
    let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rig.run_out()));
    assert!(lost.is_err());
    drop(rig);
    assert_eq!(same(&file.bytes()).plans, 3);
}

#[cfg(feature = "plot")]
mod pictures {
    use super::*;
    use octavo::trace::{RenderOptions, render};

    fn svg(timeline: &Timeline, options: &RenderOptions) -> String {
        let svg = render(timeline, options).unwrap().svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{svg}");
        svg
    }

    #[test]
    fn a_picture_names_what_it_shows() {
        let (_, bytes) = short_run();
        let svg = svg(&timeline(&bytes), &RenderOptions::default());
        let texts = [
            "request 0",
            "request 3",
            "device",
            "waiting for a slot",
            "prefill (tokens)",
            "decode (tokens)",
            "preempted",
            "recompute what was dropped",
            "finished",
            "ended by the host",
            "time, ms",
            "KV blocks in use (at most 8, 100 %)",
        ];
        for text in texts {
            assert!(svg.lines().any(|line| line.trim() == text), "{text} is missing");
        }
        assert!(svg.contains("request 1: prefill 24 tokens"), "hints are missing");
        assert!(!svg.contains("swapped out"), "the legend names what does not occur");
    }

    #[test]
    fn thousands_of_requests_make_a_small_picture() {
        let file = Shared::default();
        let mut options = small(256, 0);
        options.capacity.slot_count = 32;
        let config = SchedulerConfig::for_capacity(&options.capacity);
        let mut rig = Rig::new(&config, options, Some(Box::new(file.clone())));
        for id in 0..3000 {
            rig.add(request(id, vec![id as TokenId % 900 + 1; 20], 8));
        }
        rig.run_out();
        rig.tracer.take().unwrap().finish().unwrap();
        let timeline = timeline(&file.bytes());
        let all = svg(&timeline, &RenderOptions::default());
        assert!(all.len() < 3_000_000, "{} bytes", all.len());
        assert!(all.contains("one in 4 of 3,000 sequences is drawn") && !all.lines().any(|line| line == "request 0"));
        let some = svg(&timeline, &RenderOptions { max_rows: Some(20), ..RenderOptions::default() });
        assert!(
            some.contains("the first 20 of 3,000 sequences are drawn") && some.lines().any(|line| line == "request 19")
        );
        let height = render(&timeline, &RenderOptions::default()).unwrap().height();
        assert!(height < 1500.0, "{height}");
    }

    #[test]
    fn a_part_of_the_time_is_drawn_alone() {
        let (_, bytes) = short_run();
        let timeline = timeline(&bytes);
        let options = RenderOptions { from: Some(0.0), to: Some(1e-4), ..RenderOptions::default() };
        let early = svg(&timeline, &options);
        assert!(early.contains("time, µs") && early.len() < svg(&timeline, &RenderOptions::default()).len());
        for (from, to) in [(2.0, 1.0), (f64::NAN, 1.0), (1.0, 1.0)] {
            let options = RenderOptions { from: Some(from), to: Some(to), ..RenderOptions::default() };
            let message = render(&timeline, &options).unwrap_err().to_string();
            assert!(message.contains("is empty; the trace goes from"), "{message}");
        }
        for width in [0.0, 1e9, f64::NAN] {
            let options = RenderOptions { width, ..RenderOptions::default() };
            assert!(render(&timeline, &options).unwrap_err().to_string().contains("choose one from 300"));
        }
    }

    #[test]
    fn a_trace_without_a_request_has_a_picture() {
        let file = Shared::default();
        let options = small(8, 0);
        drop(Rig::new(&SchedulerConfig::for_capacity(&options.capacity), options, Some(Box::new(file.clone()))));
        svg(&timeline(&file.bytes()), &RenderOptions::default());
    }

    #[test]
    fn swaps_are_drawn_as_swaps() {
        let pictures = (0..60).map(|seed| timeline(&random_run(seed).1)).filter(|timeline| timeline.swaps > 0);
        let mut found = 0;
        for timeline in pictures.take(3) {
            assert!(svg(&timeline, &RenderOptions::default()).contains("swapped out to the host"));
            found += 1;
        }
        assert_eq!(found, 3);
    }
}

#[cfg(feature = "cli")]
mod command_line {
    use super::*;
    use std::path::Path;
    use std::process::{Command, Output};

    fn octavo(args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_octavo")).args(args).output().unwrap()
    }

    fn texts(output: &Output) -> (Option<i32>, String, String) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn write(folder: &Path, name: &str, bytes: &[u8]) -> String {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn replay_says_yes_or_shows_the_difference() {
        let folder = tempfile::tempdir().unwrap();
        let (rig, bytes) = short_run();
        let file = write(folder.path(), "run.json", &bytes);
        let (code, stdout, stderr) = texts(&octavo(&["replay", &file]));
        assert_eq!((code, stderr.as_str()), (Some(0), ""));
        assert!(stdout.starts_with(&format!("the same: all {} plans", rig.plans)), "{stdout}");
        let (code, stdout, _) = texts(&octavo(&["replay", &file, "--json"]));
        let json: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((code, &json["same"], json["plans"].as_u64()), (Some(0), &Value::Bool(true), Some(rig.plans)));

        let other = String::from_utf8(bytes.clone()).unwrap().replacen(
            "\"max_num_batched_tokens\":64",
            "\"max_num_batched_tokens\":48",
            1,
        );
        let file = write(folder.path(), "other.json", other.as_bytes());
        let (code, stdout, _) = texts(&octavo(&["replay", &file]));
        assert!(code == Some(1) && stdout.contains("recorded: #1") && stdout.contains("replayed: #1"), "{stdout}");
        let (code, stdout, _) = texts(&octavo(&["replay", &file, "--json"]));
        let json: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((code, &json["same"], json["plan"].as_u64()), (Some(1), &Value::Bool(false), Some(1)));

        let torn = write(folder.path(), "torn.json", &bytes[..bytes.len() / 2]);
        let (code, stdout, stderr) = texts(&octavo(&["replay", &torn]));
        assert!(
            code == Some(0) && stdout.starts_with("the same") && stderr.contains("stops in the middle"),
            "{stderr}"
        );

        let none = write(folder.path(), "none.json", b"hello");
        let (code, stdout, stderr) = texts(&octavo(&["replay", &none]));
        assert!(code == Some(1) && stdout.is_empty() && stderr.contains("is no trace of octavo"), "{stderr}");
        let (code, _, stderr) = texts(&octavo(&["replay", "/nowhere/run.json"]));
        assert!(code == Some(1) && stderr.contains("/nowhere/run.json cannot be opened"), "{stderr}");
    }

    #[cfg(feature = "plot")]
    #[test]
    fn render_writes_both_kinds_of_picture() {
        let folder = tempfile::tempdir().unwrap();
        let (_, bytes) = short_run();
        let trace = write(folder.path(), "run.json", &bytes);
        for (name, magic) in [("a/run.svg", &b"<svg"[..]), ("a/run.png", &b"\x89PNG"[..])] {
            let out = folder.path().join(name);
            let (code, stdout, stderr) = texts(&octavo(&["trace", "render", &trace, "-o", out.to_str().unwrap()]));
            assert_eq!((code, stderr.as_str()), (Some(0), ""));
            assert_eq!(stdout.trim(), out.to_str().unwrap());
            assert!(std::fs::read(&out).unwrap().starts_with(magic), "{name}");
        }
        let refusals: [(&[&str], &str); 4] = [
            (&["-o", "run.jpg"], ".svg or .png"),
            (&["-o", "run.svg", "--width", "3"], "choose one from 300"),
            (&["-o", "run.svg", "--from", "later"], "200ms"),
            (&["-o", "run.svg", "--from", "5s", "--to", "4s"], "is empty"),
        ];
        for (args, expected) in refusals {
            let (code, stdout, stderr) = texts(&octavo(&[&["trace", "render", &trace], args].concat()));
            assert!(code == Some(2) && stdout.is_empty() && stderr.contains(expected), "{args:?}: {stderr}");
        }
    }

    #[test]
    fn help_says_that_a_trace_holds_the_prompts() {
        for command in [&["trace", "render", "--help"][..], &["trace", "--help"], &["replay", "--help"]] {
            let (code, stdout, _) = texts(&octavo(command));
            assert!(code == Some(0) && stdout.contains("Examples:"), "{stdout}");
        }
        let help = texts(&octavo(&["trace", "--help"])).1;
        let words: Vec<&str> = help.split_whitespace().collect();
        assert!(words.join(" ").contains("token ids of all prompts"), "{help}");
    }
}
