//! The engine on a real device: what mocks cannot show. Losing the device, dropped streams, and impossible requests, each
//! while other requests go on with the tokens they would have had anyway.

#[path = "common/golden.rs"]
mod golden;

use octavo::base::TokenId;
use octavo::config::{EngineConfig, EngineOptions, LoadProgress};
use octavo::engine::{Engine, EngineSettings, Request};
use octavo::model::files::ModelFiles;
use octavo::runner::wgpu::WgpuRunner;
use octavo::runner::{Capacity, ModelRunner, RunError, StepResult, Wait};
use octavo::sched::plan::StepPlan;
use octavo::{Llm, SamplingParams};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

fn options() -> EngineOptions {
    EngineOptions { max_num_seqs: 4, max_num_batched_tokens: 64, max_model_len: Some(256), ..EngineOptions::default() }
}

fn model() -> String {
    golden::path("tiny-llama").to_str().expect("a path in UTF-8").to_owned()
}

fn recorded() -> Vec<(Vec<TokenId>, Vec<TokenId>)> {
    let file = golden::json("tiny-llama/golden.json");
    let prompts = file["prompts"].as_array().unwrap();
    prompts.iter().map(|prompt| (golden::ids(&prompt["ids"]), golden::ids(&prompt["greedy_ids"]))).collect()
}

fn greedy() -> SamplingParams {
    SamplingParams { ignore_eos: true, ..SamplingParams::greedy(48) }
}

/// Destroys its device at one submission.
struct Fragile {
    inner: WgpuRunner,
    submissions_left: u32,
}

impl ModelRunner for Fragile {
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), RunError> {
        self.submissions_left = self.submissions_left.saturating_sub(1);
        if self.submissions_left == 0 {
            self.inner.gpu().simulate_loss();
        }
        self.inner.submit(plan)
    }

    fn poll(&mut self, wait: Wait, result: &mut StepResult) -> Result<bool, RunError> {
        self.inner.poll(wait, result)
    }
}

#[test]
fn requests_survive_the_loss_of_the_device() {
    let files = Arc::new(ModelFiles::open(&golden::path("tiny-llama")).unwrap());
    let config = EngineConfig::new(options(), &files.spec).unwrap();
    let devices = Arc::new(AtomicU32::new(0));
    let build = {
        let (files, config, devices) = (files.clone(), config.clone(), devices.clone());
        move || {
            // The first two devices die in the middle of work, the third one lives.
            let number = devices.fetch_add(1, Ordering::Relaxed);
            let submissions_left = if number < 2 { 9 } else { u32::MAX };
            let inner = WgpuRunner::load(&files, &config, &mut |_: LoadProgress| {})?;
            Ok(Box::new(Fragile { inner, submissions_left }) as Box<dyn ModelRunner>)
        }
    };
    let runner = build().unwrap();
    let settings = EngineSettings::new(&config, runner.capacity(), Vec::new()).unwrap();
    let engine = Engine::start(runner, Some(Box::new(build)), None, settings).unwrap();
    let prompts = recorded();
    let streams: Vec<_> =
        prompts.iter().map(|(ids, _)| engine.generate(Request::new(ids.clone(), greedy())).unwrap()).collect();
    for (stream, (_, expected)) in streams.into_iter().zip(&prompts) {
        assert_eq!(&stream.wait().unwrap().token_ids, expected);
    }
    assert_eq!(devices.load(Ordering::Relaxed), 3, "two devices were lost");
}

#[test]
fn bad_requests_and_dropped_streams_disturb_nobody() {
    let llm = Llm::open(model(), options()).unwrap();
    let engine = llm.engine();
    let prompts = recorded();
    let (ids, expected) = &prompts[4];
    let steady = engine.generate(Request::new(ids.clone(), greedy())).unwrap();
    drop(engine.generate(Request::new(prompts[5].0.clone(), greedy())).unwrap());
    let cases: [(Vec<TokenId>, SamplingParams, &str); 4] = [
        (vec![], greedy(), "no tokens"),
        (vec![1, 99_999], greedy(), "99999"),
        (vec![7; 300], greedy(), "256"),
        (vec![7], SamplingParams { top_p: 2.0, ..greedy() }, "top_p is 2"),
    ];
    for (prompt, params, part) in cases {
        let refused = engine.generate(Request::new(prompt, params)).and_then(|stream| stream.wait());
        let message = refused.unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(&steady.wait().unwrap().token_ids, expected);
    // What the dropped stream held has come back, or the pool would not take four sequences of this length again.
    let again = llm.generate(vec![ids.clone(); 8], greedy()).unwrap();
    assert!(again.iter().all(|output| &output.token_ids == expected));
}

#[test]
fn too_little_memory_says_what_would_fit() {
    let refuse = |change: fn(&mut EngineOptions)| {
        let mut options = options();
        change(&mut options);
        match Llm::open(model(), options) {
            Ok(_) => panic!("opened"),
            Err(error) => error.to_string(),
        }
    };
    let message = refuse(|options| options.memory_limit = Some(1 << 20));
    assert!(message.contains("raise --memory-limit"), "{message}");
    let message = refuse(|options| options.num_kv_blocks = Some(4));
    assert!(message.contains("16 blocks"), "{message}");
    let message = refuse(|options| options.adapter = Some("no such card".into()));
    assert!(message.contains("no adapter matches"), "{message}");
}
