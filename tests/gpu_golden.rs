//! The GPU runner against the recorded tokens of another implementation: each tiny model, driven by hand-made plans.

#[path = "common/golden.rs"]
mod golden;
#[path = "common/solo.rs"]
mod solo;

use octavo::base::{Epoch, TokenId};
use octavo::config::{EngineConfig, EngineOptions, KvDtype};
use octavo::model::files::ModelFiles;
use octavo::runner::wgpu::WgpuRunner;
use solo::Solo;

fn open(model: &str, change: impl FnOnce(&mut EngineOptions)) -> (ModelFiles, WgpuRunner) {
    let files = ModelFiles::open(&golden::path(model)).unwrap();
    let mut options = EngineOptions {
        max_num_seqs: 8,
        max_num_batched_tokens: 128,
        max_model_len: Some(256),
        num_kv_blocks: Some(64),
        kv_dtype: KvDtype::F32,
        steps_per_submit: 16,
        ..EngineOptions::default()
    };
    change(&mut options);
    let config = EngineConfig::new(options, &files.spec).unwrap();
    let runner = WgpuRunner::load(&files, &config, &mut |_| {}).unwrap();
    (files, runner)
}

/// All 48 greedy tokens of all prompts, in whole and chunked prompts and in one and several steps a submission.
fn greedy_tokens_are_the_recorded_ones(model: &str, change: impl FnOnce(&mut EngineOptions)) {
    let (_, mut runner) = open(model, change);
    let file = golden::json(&format!("{model}/golden.json"));
    let mut epoch = Epoch(1);
    for (prompt, chunk, steps) in
        file["prompts"].as_array().unwrap().iter().flat_map(|p| [(p, usize::MAX, 1), (p, 7, 16), (p, 16, 4)])
    {
        let ids = golden::ids(&prompt["ids"]);
        let expected = golden::ids(&prompt["greedy_ids"]);
        let mut solo = Solo::greedy(ids.len(), expected.len() as u32);
        solo.chunk = chunk.min(ids.len());
        solo.steps = steps;
        let tokens: Vec<TokenId> = solo.run(&mut runner, &mut epoch, &ids).ids();
        assert_eq!(tokens, expected, "{model}, {} tokens, chunks of {chunk}, {steps} steps", ids.len());
    }
}

#[test]
fn tiny_llama() {
    greedy_tokens_are_the_recorded_ones("tiny-llama", |_| {});
}

#[test]
fn tiny_llama3_rope() {
    greedy_tokens_are_the_recorded_ones("tiny-llama3-rope", |_| {});
}

#[test]
fn tiny_qwen2() {
    greedy_tokens_are_the_recorded_ones("tiny-qwen2", |_| {});
}

#[test]
fn tiny_qwen3() {
    greedy_tokens_are_the_recorded_ones("tiny-qwen3", |_| {});
}

#[test]
fn half_precision_kv_keeps_the_tokens() {
    greedy_tokens_are_the_recorded_ones("tiny-llama", |options| options.kv_dtype = KvDtype::F16);
}
