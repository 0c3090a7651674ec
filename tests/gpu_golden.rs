//! The GPU runner against the recorded tokens of another implementation: each tiny model, driven by hand-made plans.

#[path = "common/golden.rs"]
mod golden;
#[path = "common/solo.rs"]
mod solo;

use golden::Tensors;
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

fn largest_difference(ours: &[f32], recorded: &[f64]) -> f64 {
    assert_eq!(ours.len(), recorded.len());
    assert!(ours.iter().all(|value| value.is_finite()));
    ours.iter().zip(recorded).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max)
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

/// Logits of every position of every prompt, read from the device after a scoring chunk, with f32 keys and values.
fn logits_are_the_recorded_ones(model: &str) {
    let (files, mut runner) = open(model, |_| {});
    let recorded = Tensors::open(&format!("{model}/golden.safetensors"));
    let vocab = files.spec.vocab_size;
    let mut epoch = Epoch(1);
    for prompt in golden::json(&format!("{model}/golden.json"))["prompts"].as_array().unwrap() {
        let ids = golden::ids(&prompt["ids"]);
        let solo = Solo { score: true, ..Solo::greedy(ids.len(), 1) };
        solo.run(&mut runner, &mut epoch, &ids);
        let logits = runner.read_logits(ids.len()).unwrap();
        let expected = recorded.floats(&format!("logits.len{}", ids.len()));
        assert_eq!(logits.len() * vocab, expected.len());
        let difference = largest_difference(&logits.concat(), &expected);
        println!("{model} {} tokens: {difference:.1e}", ids.len());
        // The tolerance that comes with the recordings, for f32 throughout.
        assert!(difference < 1e-3, "{model} {} tokens: {difference}", ids.len());
    }
}

#[test]
fn logits_of_every_position() {
    for model in ["tiny-llama", "tiny-llama3-rope", "tiny-qwen2", "tiny-qwen3"] {
        logits_are_the_recorded_ones(model);
    }
}

#[test]
fn gguf_files_give_the_recorded_tokens() {
    let list = golden::json("gguf/gguf.json");
    let files = list["files"].as_array().unwrap();
    assert_eq!(files.len(), 8);
    for file in files {
        let (_, mut runner) = open(&format!("gguf/{}", file["file"].as_str().unwrap()), |_| {});
        let recorded = Tensors::open(&format!("gguf/{}", file["golden"].as_str().unwrap()));
        let mut epoch = Epoch(1);
        for prompt in file["prompts"].as_array().unwrap() {
            let ids = golden::ids(&prompt["ids"]);
            let margin = prompt["min_margin"].as_f64().unwrap();
            let solo = Solo { steps: 4, ..Solo::greedy(ids.len(), 1) };
            solo.run(&mut runner, &mut epoch, &ids);
            let logits = runner.read_logits(1).unwrap();
            let expected = recorded.floats(&format!("last_logits.len{}", ids.len()));
            let difference = largest_difference(&logits.concat(), &expected);
            assert!(difference < 1e-3, "{file} {} tokens: {difference}", ids.len());
            assert!(margin > 2.0 * difference, "comparable: margin {margin}, difference {difference}");
            let solo = Solo { steps: 4, ..Solo::greedy(ids.len(), 24) };
            assert_eq!(solo.run(&mut runner, &mut epoch, &ids).ids(), golden::ids(&prompt["greedy_ids"]), "{file}");
        }
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
