//! Requests of every kind through the real scheduler, on the f64 reference and on the device. Whatever is chunked, cached,
//! preempted, guided or run ahead, each request gets the tokens that the reference gets on the plainest way; on the device also
//! the same log-probabilities, bit for bit.

#[path = "common/golden.rs"]
mod golden;

use octavo::base::{RequestId, SeqId, TokenId};
use octavo::config::{EngineConfig, EngineOptions, KvDtype};
use octavo::model::files::ModelFiles;
use octavo::reference::{ReferenceOptions, ReferenceRunner};
use octavo::runner::wgpu::WgpuRunner;
use octavo::runner::{ModelRunner, StepResult, TokenLogprob, TopToken, Wait};
use octavo::sampling::lists::{fill_mask, mask_words};
use octavo::sampling::{Constraint, SamplingLists, SamplingParams, SamplingRow, TopLogprobs};
use octavo::sched::plan::StepPlan;
use octavo::sched::{FinishReason, NewSequence, SchedEvent, Scheduler, SchedulerConfig, SchedulerStats};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const CONTEXT: usize = 160;
const SLOTS: usize = 8;

/// One request. Guided ones get a mask for each token and now and then tokens without a choice.
#[derive(Clone, Debug)]
struct Ask {
    prompt: Vec<TokenId>,
    max_tokens: u32,
    params: SamplingParams,
    lists: SamplingLists,
    seed: u64,
}

/// What a request got.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<TokenId>,
    /// Of sampled tokens, and of the prompt's from the second on.
    reports: Vec<Report>,
    scores: Vec<Report>,
    reason: Option<FinishReason>,
}

#[derive(Clone, Debug, PartialEq)]
struct Report {
    logprob: f64,
    rank: u32,
    top: Vec<TopToken>,
}

impl Report {
    fn new(told: TokenLogprob, result: &StepResult) -> Self {
        Self { logprob: told.logprob, rank: told.rank, top: told.top.of(result).to_vec() }
    }
}

/// A made-up guide: about a fifth of the tokens, other ones each time.
fn guided_tokens(output: &[TokenId], vocab_size: u32) -> Vec<TokenId> {
    let turn = output.len() as u32 * 3 + output.last().copied().unwrap_or(0);
    (0..vocab_size).filter(|token| (token * 7 + turn).is_multiple_of(5)).collect()
}

impl Ask {
    fn sequence(&self, id: usize) -> NewSequence {
        let stops = &self.params.stop_token_ids;
        let sampling = SamplingRow::new(&self.params, self.seed, stops).with_lists(&self.lists);
        NewSequence {
            stop_tokens: stops.clone(),
            lists: (!self.lists.is_empty()).then(|| Arc::new(self.lists.clone())),
            score: self.params.prompt_logprobs.is_some(),
            ..NewSequence::new(RequestId(id as u64), self.prompt.clone(), self.max_tokens, sampling)
        }
    }
}

/// Runs all of `asks` to their end; two of them arrive with each submission.
fn run(runner: &mut dyn ModelRunner, config: SchedulerConfig, asks: &[Ask]) -> (Vec<Answer>, SchedulerStats) {
    let vocab_size = runner.capacity().vocab_size;
    let mut scheduler = Scheduler::new(config, runner.capacity()).unwrap();
    let mut owners: HashMap<SeqId, usize> = HashMap::new();
    let mut answers = vec![Answer::default(); asks.len()];
    let (mut plan, mut result, mut events) = (StepPlan::default(), StepResult::default(), Vec::new());
    while owners.len() < asks.len() || scheduler.has_work() {
        for _ in 0..2 {
            if let Some(ask) = asks.get(owners.len()) {
                owners.insert(scheduler.add(ask.sequence(owners.len()), &mut events).unwrap(), owners.len());
            }
        }
        while scheduler.schedule(&mut plan, &mut events) {
            for row in &plan.masks {
                let tokens = guided_tokens(&answers[owners[&row.seq]].tokens, vocab_size);
                let mut mask = vec![0; mask_words(vocab_size as usize)];
                fill_mask(&mut mask, &tokens);
                plan.mask_words.extend(mask);
            }
            runner.submit(&plan).unwrap_or_else(|error| panic!("{error}: {plan}"));
        }
        if scheduler.in_flight() > 0 && runner.poll(Wait::AtMost(Duration::from_secs(60)), &mut result).unwrap() {
            scheduler.commit(&result, &mut events);
        }
        let mut sampled = Vec::new();
        for event in events.drain(..) {
            match event {
                SchedEvent::Token { seq, token, logprob } => {
                    let answer = &mut answers[owners[&seq]];
                    answer.tokens.push(token);
                    answer.reports.extend(logprob.map(|told| Report::new(told, &result)));
                    sampled.push(seq);
                }
                SchedEvent::Score { seq, logprob, rank, top, .. } => {
                    let told = TokenLogprob { logprob, rank, top };
                    answers[owners[&seq]].scores.push(Report::new(told, &result));
                }
                SchedEvent::Finished { seq, reason, .. } => answers[owners[&seq]].reason = Some(reason),
                _ => {}
            }
        }
        for seq in sampled.into_iter().filter(|seq| asks[owners[seq]].params.constraint.is_some()) {
            let count = answers[owners[&seq]].tokens.len();
            if count % 6 == 2 {
                let forced = [count as u32 * 11 % 500, 77, count as u32];
                scheduler.append(seq, &forced, &mut events);
            }
            scheduler.set_ready(seq);
        }
        // Appended tokens come as events; nothing more is due after them.
        for event in events.drain(..) {
            match event {
                SchedEvent::Token { seq, token, .. } => answers[owners[&seq]].tokens.push(token),
                SchedEvent::Finished { seq, reason, .. } => answers[owners[&seq]].reason = Some(reason),
                _ => {}
            }
        }
    }
    (answers, scheduler.stats())
}

/// Requests that use every rule, over prompts some of which begin alike.
fn asks() -> Vec<Ask> {
    let file = golden::json("tiny-llama/golden.json");
    let recorded: Vec<(Vec<TokenId>, Vec<TokenId>)> = (file["prompts"].as_array().unwrap().iter())
        .map(|prompt| (golden::ids(&prompt["ids"]), golden::ids(&prompt["greedy_ids"])))
        .collect();
    let greedy = SamplingParams::default();
    let drawn = SamplingParams { temperature: 0.9, ..Default::default() };
    let guided = Some(Constraint::JsonObject);
    let outputs = &recorded[3].1;
    let none = SamplingLists::default;
    let stops: Vec<TokenId> = (0..500).step_by(3).collect();
    let kinds: Vec<(SamplingParams, SamplingLists)> = vec![
        (SamplingParams { repetition_penalty: 1.3, ..greedy.clone() }, none()),
        (SamplingParams { frequency_penalty: 0.7, presence_penalty: 0.4, ..drawn.clone() }, none()),
        (
            greedy.clone(),
            SamplingLists { bad_words: vec![vec![outputs[0]], outputs[1..4].to_vec()], ..Default::default() },
        ),
        (
            SamplingParams { min_tokens: 11, stop_token_ids: stops.clone(), top_p: 0.9, ..drawn.clone() },
            SamplingLists { early_stops: stops, ..Default::default() },
        ),
        (
            SamplingParams { top_k: 30, repetition_penalty: 0.8, ..drawn.clone() },
            SamplingLists {
                bias: vec![(outputs[0], -100.0), (9, 2.0)],
                bad_words: vec![vec![9, 9]],
                ..Default::default()
            },
        ),
        (drawn.clone(), SamplingLists { allowed: Some((100..140).collect()), ..Default::default() }),
        (SamplingParams { constraint: guided.clone(), repetition_penalty: 1.5, ..greedy.clone() }, none()),
        (SamplingParams { constraint: guided, min_p: 0.02, ..drawn.clone() }, none()),
        (SamplingParams { logprobs: Some(TopLogprobs::Most(5)), ..drawn.clone() }, none()),
        (SamplingParams { logprobs: Some(TopLogprobs::All), ..greedy.clone() }, none()),
        (
            SamplingParams {
                logprobs: Some(TopLogprobs::Most(0)),
                prompt_logprobs: Some(TopLogprobs::Most(3)),
                frequency_penalty: -0.3,
                ..drawn.clone()
            },
            none(),
        ),
        (drawn, none()),
        (greedy, SamplingLists { allowed: Some(Vec::new()), ..Default::default() }),
    ];
    let lengths = [4, 5, 3, 4];
    (0..)
        .zip(kinds)
        .map(|(index, (params, lists))| Ask {
            // Of 33, 100 and 17 tokens; the first 16 of the second and the last are those of the first, for the cache.
            prompt: {
                let mut prompt = recorded[lengths[index % lengths.len()]].0.clone();
                prompt[..16].copy_from_slice(&recorded[4].0[..16]);
                prompt
            },
            max_tokens: 24,
            params,
            lists,
            seed: 1000 + index as u64,
        })
        .collect()
}

fn plain(capacity: &octavo::runner::Capacity) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 1,
        prefix_cache: false,
        max_steps: 1,
        max_in_flight: 1,
        ..SchedulerConfig::for_capacity(capacity)
    }
}

fn on_reference(asks: &[Ask], blocks: u32, config: impl FnOnce(SchedulerConfig) -> SchedulerConfig) -> Vec<Answer> {
    let files = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    let options = ReferenceOptions {
        block_count: blocks,
        slot_count: SLOTS as u32,
        max_batched_tokens: 128,
        max_model_len: CONTEXT as u32,
        max_steps: 4,
    };
    let mut runner = ReferenceRunner::new(&files, options).unwrap();
    let config = config(plain(&runner.capacity()));
    run(&mut runner, config, asks).0
}

fn on_device(
    asks: &[Ask],
    blocks: usize,
    config: impl FnOnce(SchedulerConfig) -> SchedulerConfig,
) -> (Vec<Answer>, SchedulerStats) {
    let files = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    let options = EngineOptions {
        max_num_seqs: SLOTS,
        max_num_batched_tokens: 128,
        max_model_len: Some(CONTEXT),
        num_kv_blocks: Some(blocks),
        kv_dtype: KvDtype::F32,
        steps_per_submit: 4,
        ..EngineOptions::default()
    };
    let engine = EngineConfig::new(options, &files.spec).unwrap();
    let mut runner = WgpuRunner::load(&files, &engine, &mut |_| {}).unwrap();
    let config = config(plain(&runner.capacity()));
    run(&mut runner, config, asks)
}

/// Everything at once: crowds, pieces of prompts, shared prefixes, several steps, run-ahead.
fn crowded(config: SchedulerConfig) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: SLOTS,
        max_num_batched_tokens: 40,
        prefix_cache: true,
        max_steps: 4,
        max_in_flight: 2,
        ..config
    }
}

fn same_tokens(what: &str, ours: &[Answer], expected: &[Answer]) {
    for (index, (ours, expected)) in ours.iter().zip(expected).enumerate() {
        assert_eq!(ours.tokens, expected.tokens, "{what}: request {index}");
        assert_eq!(ours.reason, expected.reason, "{what}: request {index}");
    }
}

#[test]
fn every_request_gets_its_tokens_whatever_else_happens() {
    let asks = asks();
    let expected = on_reference(&asks, 64, |config| config);
    assert!(expected[..12].iter().all(|answer| answer.tokens.len() >= 11), "too short to show anything");
    assert_eq!(expected[12], Answer { reason: Some(FinishReason::NothingAllowed), ..Default::default() });
    same_tokens("reference, crowded", &on_reference(&asks, 30, crowded), &expected);

    let (alone, _) = on_device(&asks, 64, |config| config);
    same_tokens("device", &alone, &expected);
    for (ours, twin) in alone.iter().zip(&expected) {
        for (ours, twin) in [(&ours.reports, &twin.reports), (&ours.scores, &twin.scores)] {
            assert_eq!(ours.len(), twin.len());
            ours.iter().zip(twin).for_each(|(ours, twin)| close(ours, twin));
        }
    }
    let reports = |index: usize| alone[index].reports.iter().map(|report| report.top.len()).collect::<Vec<_>>();
    assert_eq!((reports(8), reports(9), reports(10)), (vec![5; 24], vec![515; 24], vec![0; 24]));
    assert_eq!(alone[10].scores.len(), asks[10].prompt.len() - 1);
    assert!(alone[10].scores.iter().all(|score| score.top.len() == 3 && score.rank > 0));

    let (crowd, stats) = on_device(&asks, 64, crowded);
    assert!(stats.prefix_hits > 0, "nothing was shared: {stats:?}");
    assert_eq!(crowd, alone);
    // Too few blocks for all: histories come back with their owners.
    let (tight, stats) = on_device(&asks, 14, crowded);
    assert!(stats.preemptions > 2, "{} preemptions", stats.preemptions);
    assert_eq!(tight, alone);
}

/// Within what f32 logits of this model leave open.
fn close(ours: &Report, twin: &Report) {
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-3, "{a}, {b}");
    near(ours.logprob, twin.logprob);
    assert_eq!(ours.top.len(), twin.top.len());
    assert!(ours.rank.abs_diff(twin.rank) <= 1, "rank {} of {}", ours.rank, twin.rank);
    for (ours, twin) in ours.top.iter().zip(&twin.top) {
        assert!(ours.logprob.is_finite());
        near(f64::from(ours.logprob), f64::from(twin.logprob));
    }
}
