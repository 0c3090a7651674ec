//! The scheduler with the f64 reference behind it: whatever it plans, each request gets the recorded tokens.

#[path = "common/golden.rs"]
mod golden;

use octavo::base::{RequestId, SeqId, TokenId};
use octavo::model::files::ModelFiles;
use octavo::reference::{ReferenceOptions, ReferenceRunner};
use octavo::runner::mock::MockOptions;
use octavo::runner::{ModelRunner, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::StepPlan;
use octavo::sched::{FinishReason, NewSequence, SchedEvent, Scheduler, SchedulerConfig, SchedulerStats};
use std::collections::HashMap;

const OUTPUT: u32 = 48;

/// Ample room, one step and one submission at a time, whole prompts.
fn plain() -> SchedulerConfig {
    let capacity = MockOptions::default().capacity;
    SchedulerConfig {
        max_num_seqs: 8,
        max_num_batched_tokens: 256,
        max_model_len: 160,
        prefix_cache: false,
        max_steps: 1,
        max_in_flight: 1,
        ..SchedulerConfig::for_capacity(&capacity)
    }
}

/// Every prompt of a model twice, the second one after the first has finished half of its output.
fn run(model: &str, config: SchedulerConfig, block_count: u32) -> SchedulerStats {
    let files = ModelFiles::open(&golden::path(model)).unwrap();
    let options = ReferenceOptions {
        block_count,
        slot_count: config.max_num_seqs as u32,
        max_batched_tokens: config.max_num_batched_tokens as u32,
        max_model_len: config.max_model_len as u32,
        max_steps: config.max_steps,
    };
    let mut runner = ReferenceRunner::new(&files, options).unwrap();
    let mut scheduler = Scheduler::new(config.clone(), runner.capacity()).unwrap();
    let file = golden::json(&format!("{model}/golden.json"));
    let mut expected: HashMap<SeqId, Vec<TokenId>> = HashMap::new();
    let mut add_all = |scheduler: &mut Scheduler| {
        for prompt in file["prompts"].as_array().unwrap() {
            let (request, prompt_ids) = (RequestId(expected.len() as u64), golden::ids(&prompt["ids"]));
            let sampling = SamplingRow::new(&SamplingParams::greedy(OUTPUT), 0, &[]);
            let new = NewSequence::new(request, prompt_ids, OUTPUT, sampling);
            expected.insert(scheduler.add(new, &mut Vec::new()).unwrap(), golden::ids(&prompt["greedy_ids"]));
        }
    };
    add_all(&mut scheduler);

    let mut tokens: HashMap<SeqId, Vec<TokenId>> = HashMap::new();
    let (mut plan, mut result, mut events) = (StepPlan::default(), StepResult::default(), Vec::new());
    let mut second_round = false;
    while scheduler.has_work() {
        while scheduler.schedule(&mut plan, &mut events) {
            runner.submit(&plan).unwrap_or_else(|e| panic!("{model} {config:?}: {e}"));
        }
        if runner.poll(Wait::No, &mut result).unwrap() {
            scheduler.commit(&result, &mut events);
        }
        for event in events.drain(..) {
            match event {
                SchedEvent::Token { seq, token, .. } => tokens.entry(seq).or_default().push(token),
                SchedEvent::Finished { reason, .. } => assert_eq!(reason, FinishReason::Length),
                _ => {}
            }
        }
        if !second_round && tokens.values().any(|tokens| tokens.len() >= 24) {
            second_round = true;
            add_all(&mut scheduler);
        }
    }
    assert!(second_round);
    assert_eq!(expected.len(), 12);
    for (seq, expected) in &expected {
        assert_eq!(tokens.get(seq), Some(expected), "{model} {config:?}, sequence {seq}");
    }
    let stats = scheduler.stats();
    assert_eq!(stats.blocks_used, 0, "{stats:?}");
    stats
}

#[test]
fn plain_batches() {
    let stats = run("tiny-llama", plain(), 128);
    assert_eq!((stats.preemptions, stats.prefix_hits), (0, 0));
}

#[test]
fn small_chunks_run_ahead_and_several_steps() {
    let config = SchedulerConfig {
        max_num_batched_tokens: 32,
        long_prefill_token_threshold: 7,
        max_steps: 4,
        max_in_flight: 2,
        ..plain()
    };
    run("tiny-llama3-rope", config, 128);
}

#[test]
fn prefix_hits_skip_prefill() {
    let config = SchedulerConfig { prefix_cache: true, max_in_flight: 2, ..plain() };
    let stats = run("tiny-qwen3", config, 128);
    // Of the second round at least the longest prompt's full blocks: 96 of its 100 tokens.
    assert!(stats.prefix_hits >= 96, "{stats:?}");
}

#[test]
fn preempted_sequences_are_computed_again() {
    for prefix_cache in [false, true] {
        let config = SchedulerConfig { prefix_cache, max_steps: 4, max_in_flight: 2, ..plain() };
        // The longest sequence alone needs ten blocks.
        let stats = run("tiny-qwen2", config, 12);
        assert!(stats.preemptions > 0, "{stats:?}");
    }
}
