//! The engine on the mock runner: order, text, cancels in every state, lost devices, full queues, shutting down.
//! The mock knows what any correct schedule must generate, so every test compares tokens with that.

use futures::StreamExt;
use octavo::base::{Epoch, TokenId};
use octavo::config::EngineOptions;
use octavo::engine::{Engine, EngineSettings, Request, RunnerFactory, TokenEvent, TokenStream};
use octavo::error::{Error, ErrorKind};
use octavo::llm::{Flow, Llm, RunNews};
use octavo::model::files::ModelFiles;
use octavo::runner::mock::{Fault, MockOptions, MockRunner};
use octavo::runner::{Capacity, ModelRunner, RunError, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::FinishReason;
use octavo::sched::plan::StepPlan;
use octavo::text::Tokenizer;
use runners::{EditedRunner, GatedRunner, Rows};
use std::path::PathBuf;
use std::time::{Duration, Instant};

mod control;
mod ends;
mod faults;
mod guided;
mod logprobs;
mod prepare;
mod requests;
mod runners;
mod text;

const EOS: TokenId = 2;

fn mock() -> MockOptions {
    let capacity = Capacity {
        block_count: 64,
        slot_count: 8,
        max_batched_tokens: 64,
        max_model_len: 256,
        max_steps: 4,
        vocab_size: 512,
        host_blocks: 0,
        window: None,
        logprob_entries: 1 << 16,
    };
    MockOptions { capacity, eos: EOS, ..MockOptions::default() }
}

fn settings(mock: &MockOptions) -> EngineSettings {
    let mut settings = EngineSettings::for_capacity(mock.capacity);
    settings.end_tokens = vec![EOS];
    settings.rebuild.first_pause = Duration::ZERO;
    settings
}

fn boxed(mock: &MockOptions) -> Box<dyn ModelRunner> {
    Box::new(MockRunner::new(mock.clone()))
}

fn start(mock: &MockOptions) -> Engine {
    Engine::start(boxed(mock), None, None, settings(mock)).unwrap()
}

fn model_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny-llama")
}

fn tokenizer() -> Tokenizer {
    let files = ModelFiles::open(&model_folder()).unwrap();
    Tokenizer::from_file(files.text.tokenizer.as_ref().unwrap()).unwrap()
}

/// A tiny model's tokenizer and spec, with the mock in place of its weights.
fn llm(mock: &MockOptions, options: EngineOptions) -> Llm {
    Llm::with_runner(ModelFiles::open(&model_folder()).unwrap(), options, boxed(mock)).unwrap()
}

fn prompt(seed: u32, len: usize) -> Vec<TokenId> {
    (0..len as u32).map(|i| 3 + (seed * 7919 + i * 104_729) % 500).collect()
}

/// What must come out for greedy `params`.
fn expected(mock: &MockOptions, prompt: &[TokenId], params: &SamplingParams) -> Vec<TokenId> {
    let mut stops = params.stop_token_ids.clone();
    if !params.ignore_eos {
        stops.push(EOS);
    }
    let row = SamplingRow::new(params, params.seed.unwrap_or(0), &stops);
    let room = mock.capacity.max_model_len as usize;
    let limit = params.max_tokens.map_or(room, |max| room.min(prompt.len() + max as usize));
    mock.continuation(prompt, &row, &stops, limit)
}

fn next(stream: &mut TokenStream) -> Option<octavo::error::Result<TokenEvent>> {
    pollster::block_on(stream.next())
}

/// Waits until the engine holds nothing; fails if that does not happen.
fn assert_all_free(engine: &octavo::engine::EngineHandle) {
    // Commands are served in order: once this refusal is back, everything before it has been taken notice of.
    engine.generate(Request::new(Vec::new(), SamplingParams::greedy(1))).unwrap().wait().unwrap_err();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let metrics = engine.metrics();
        let ended = metrics.completed + metrics.cancelled + metrics.failed;
        if (metrics.kv_blocks_used, metrics.running, metrics.waiting, metrics.requests) == (0, 0, 0, ended) {
            return;
        }
        assert!(Instant::now() < deadline, "still held: {metrics:?}");
        std::thread::yield_now();
    }
}
