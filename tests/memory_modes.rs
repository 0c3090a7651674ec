//! Policies, preemption, swapping, the host's prefix cache, shared prompts and cancelled neighbours change no token: random
//! requests on a real tiny model, each alone first, then under every way in which memory can run short.
//!
//! The seed is printed; `OCTAVO_TEST_SEED` sets it, `OCTAVO_TEST_REQUESTS` the number of requests.

#[path = "common/drive.rs"]
mod drive;
#[path = "common/golden.rs"]
mod golden;

use drive::Dice;
use octavo::base::{RequestId, SeqId, TokenId};
use octavo::config::{EngineConfig, EngineOptions};
use octavo::model::files::ModelFiles;
use octavo::runner::wgpu::WgpuRunner;
use octavo::runner::{ModelRunner, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::StepPlan;
use octavo::sched::{NewSequence, Policy, Preemption, SchedEvent, Scheduler, SchedulerConfig, SchedulerStats};
use std::collections::HashMap;
use std::time::Duration;

const CONTEXT: usize = 216;
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

fn load(files: &ModelFiles, blocks: usize) -> WgpuRunner {
    let options = EngineOptions {
        max_num_seqs: 6,
        max_num_batched_tokens: 96,
        max_model_len: Some(CONTEXT),
        num_kv_blocks: Some(blocks),
        steps_per_submit: 4,
        swap_space: 2 << 20,
        ..EngineOptions::default()
    };
    let config = EngineConfig::new(options, &files.spec).unwrap();
    WgpuRunner::load(files, &config, &mut |_| {}).unwrap()
}

/// A request; with `outputs` above 1 that many sequences share its prompt.
#[derive(Clone)]
struct Ask {
    prompt: Vec<TokenId>,
    max_tokens: u32,
    params: SamplingParams,
    seed: u64,
    outputs: u64,
    priority: i32,
    deadline: u64,
    arrival: usize,
    /// Submission after which the caller loses interest.
    cancel: Option<usize>,
}

fn random_asks(dice: &mut Dice, count: usize, vocab: u64) -> Vec<Ask> {
    let shared: Vec<TokenId> = (0..96).map(|_| dice.below(vocab) as TokenId).collect();
    let mut ask = |index: usize| {
        let len = 1 + dice.below(140) as usize;
        let mut prompt: Vec<TokenId> = (0..len).map(|_| dice.below(vocab) as TokenId).collect();
        if index.is_multiple_of(3) {
            let common = len.min(shared.len());
            prompt[..common].copy_from_slice(&shared[..common]);
        }
        let outputs = if index % 4 == 1 { 3 } else { 1 };
        let hot = outputs > 1 || index.is_multiple_of(2);
        let params = SamplingParams { temperature: if hot { 0.9 } else { 0.0 }, top_k: 20, ..Default::default() };
        Ask {
            prompt,
            max_tokens: 10 + dice.below(60) as u32,
            params,
            seed: dice.word() >> 1,
            outputs,
            priority: dice.below(4) as i32,
            deadline: dice.below(1000),
            arrival: dice.below(40) as usize,
            cancel: (index % 9 == 4).then(|| 5 + dice.below(60) as usize),
        }
    };
    (0..count).map(&mut ask).collect()
}

impl Ask {
    fn sequence(&self, request: usize, output: u64, fork_of: Option<SeqId>) -> NewSequence {
        let sampling = SamplingRow::new(&self.params, self.seed + output, &[]);
        NewSequence {
            fork_of,
            priority: self.priority,
            arrival_micros: self.arrival as u64,
            deadline_micros: Some(self.arrival as u64 + self.deadline),
            ..NewSequence::new(RequestId(request as u64), self.prompt.clone(), self.max_tokens, sampling)
        }
    }
}

/// The tokens of each output of each request, `None` where it was cancelled.
type Outcome = HashMap<(usize, u64), Option<Vec<TokenId>>>;

/// Runs all to their ends.
fn run(runner: &mut WgpuRunner, config: &SchedulerConfig, asks: &[Ask]) -> (Outcome, SchedulerStats) {
    let mut scheduler = Scheduler::new(config.clone(), runner.capacity()).unwrap();
    let (mut plan, mut result, mut events) = (StepPlan::default(), StepResult::default(), Vec::new());
    let mut owners: HashMap<SeqId, (usize, u64)> = HashMap::new();
    let mut tokens = Outcome::new();
    let mut next: Vec<usize> = (0..asks.len()).collect();
    next.sort_by_key(|index| asks[*index].arrival);
    next.reverse();
    let mut step = 0;
    while !next.is_empty() || scheduler.has_work() {
        while let Some(index) = next.pop_if(|index| asks[*index].arrival <= step) {
            let mut first = None;
            for output in 0..asks[index].outputs {
                let seq = scheduler.add(asks[index].sequence(index, output, first), &mut events).unwrap();
                first.get_or_insert(seq);
                owners.insert(seq, (index, output));
                tokens.insert((index, output), Some(Vec::new()));
            }
        }
        while scheduler.schedule(&mut plan, &mut events) {
            scheduler.check_plan(&plan);
            runner.submit(&plan).unwrap_or_else(|error| panic!("{error}: {plan}"));
            step += 1;
        }
        if scheduler.in_flight() > 0 && runner.poll(Wait::AtMost(Duration::from_secs(60)), &mut result).unwrap() {
            scheduler.set_costs(runner.costs());
            scheduler.commit(&result, &mut events);
        } else {
            step += 1;
        }
        for event in events.drain(..) {
            if let SchedEvent::Token { seq, token, .. } = event
                && let Some(tokens) = tokens.get_mut(&owners[&seq]).and_then(Option::as_mut)
            {
                tokens.push(token);
            }
        }
        for (seq, owner) in &owners {
            if asks[owner.0].cancel.is_some_and(|cancel| cancel <= step) && tokens[owner].is_some() {
                scheduler.finish(*seq);
                tokens.insert(*owner, None);
            }
        }
        scheduler.check();
    }
    let stats = scheduler.stats();
    assert_eq!((stats.blocks_used, stats.host_used), (0, 0), "everything has come back");
    (tokens, stats)
}

type Change = fn(&mut SchedulerConfig);
type Check = fn(&SchedulerStats) -> bool;

const MODES: &[(&str, Change, Check)] = &[
    ("recompute", |_| {}, |stats| stats.preemptions > 0 && stats.swaps_out == 0),
    ("swap", |config| config.preemption = Preemption::Swap, |stats| stats.swaps_out > 0),
    (
        "swap, lock step, one step a submission",
        |config| {
            config.preemption = Preemption::Swap;
            (config.max_in_flight, config.max_steps) = (1, 1);
        },
        |stats| stats.swaps_in == stats.swaps_out,
    ),
    ("auto", |config| config.preemption = Preemption::Auto, |stats| stats.preemptions > 0),
    (
        "prefix cache on device and host, swap",
        |config| {
            (config.prefix_cache, config.host_cache) = (true, true);
            config.preemption = Preemption::Swap;
        },
        |stats| stats.prefix_hits > 0 && stats.host_hits > 0,
    ),
    ("prefix cache on the device alone", |config| config.prefix_cache = true, |stats| stats.prefix_hits > 0),
    ("priorities", |config| config.policy = Policy::Priority, |stats| stats.preemptions > 0),
    ("deadlines", |config| config.policy = Policy::Edf, |stats| stats.preemptions > 0),
    ("split phases", |config| config.policy = Policy::PhaseSplit, |stats| stats.preemptions > 0),
    (
        "three prompts at once in chunks of 16",
        |config| {
            config.long_prefill_token_threshold = 16;
            (config.max_num_partial_prefills, config.max_long_partial_prefills) = (3, 2);
            config.watermark = 0.1;
        },
        |stats| stats.prefill_tokens > 0,
    ),
];

/// `blocks` hold the longest request and little else.
fn agree(model: &str, count: usize, blocks: usize) {
    let files = ModelFiles::open(&golden::path(model)).unwrap();
    let mut runner = load(&files, blocks);
    let seed = number("OCTAVO_TEST_SEED", 20_261_129);
    println!("{model}: seed {seed}, {count} requests");
    let asks = random_asks(&mut Dice(seed), count, 512);
    let base = SchedulerConfig {
        prefix_cache: false,
        host_cache: false,
        max_in_flight: 2,
        ..SchedulerConfig::for_capacity(&runner.capacity())
    };
    let plain = SchedulerConfig { max_in_flight: 1, max_steps: 1, ..base.clone() };
    // Each output by itself, as a request of its own with its own seed.
    let mut alone = HashMap::new();
    for (index, ask) in asks.iter().enumerate() {
        for output in 0..ask.outputs {
            let single = Ask { outputs: 1, seed: ask.seed + output, arrival: 0, cancel: None, ..ask.clone() };
            let (mut tokens, _) = run(&mut runner, &plain, &[single]);
            alone.insert((index, output), tokens.remove(&(0, 0)).flatten().unwrap());
        }
    }
    let mut pairs = 0;
    for (name, change, check) in MODES {
        let mut config = base.clone();
        change(&mut config);
        let (tokens, stats) = run(&mut runner, &config, &asks);
        for (owner, tokens) in tokens {
            if let Some(tokens) = tokens {
                assert_eq!(tokens, alone[&owner], "{model}, {name}: output {} of request {}", owner.1, owner.0);
                pairs += 1;
            }
        }
        assert!(stats.copies > 0 && check(&stats), "{model}, {name}: it did not happen: {stats:?}");
    }
    println!("{model}: {pairs} pairs agree");
}

#[test]
fn memory_changes_no_token() {
    agree("tiny-llama", number("OCTAVO_TEST_REQUESTS", 16) as usize, 20);
}

#[test]
fn memory_changes_no_token_of_a_model_with_a_window() {
    agree("tiny-mistral", number("OCTAVO_TEST_REQUESTS", 12) as usize, 14);
}
