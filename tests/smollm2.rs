//! SmolLM2-135M-Instruct from its GGUF file (Q4_1 matrices, Q8_0 embedding) against the tokens and log-probabilities of
//! another implementation. The file is not part of the repository: `make test` fetches it; without it these tests say so
//! and pass over.

#[path = "common/golden.rs"]
mod golden;

use octavo::config::{Activations, EngineOptions, KvDtype};
use octavo::engine::Prompt;
use octavo::{Llm, SamplingParams};
use std::path::PathBuf;

fn model() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    let usual = cache.map(|cache| cache.join("octavo/SmolLM2-135M-Instruct.Q4_1.gguf"));
    let path = std::env::var_os("OCTAVO_SMOLLM2").map(PathBuf::from).or(usual)?;
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not there; `make test` fetches it, or set OCTAVO_SMOLLM2", path.display());
    None
}

fn open(path: &std::path::Path, change: impl FnOnce(&mut EngineOptions)) -> Llm {
    let mut options = EngineOptions {
        max_num_seqs: 20,
        max_num_batched_tokens: 512,
        max_model_len: Some(2048),
        num_kv_blocks: Some(300),
        ..EngineOptions::default()
    };
    change(&mut options);
    Llm::open(path.to_str().expect("a path in UTF-8"), options).unwrap()
}

/// KV in f16 moves the log-probability of a recorded token by up to 0.0047 (`likelihood_is_the_recorded_one` prints it). Two
/// logits may move apart by twice that, so a step whose best two are closer may go either way, and the text after it too.
const MARGIN: f64 = 0.01;

#[test]
fn greedy_tokens_are_the_recorded_ones() {
    let Some(path) = model() else { return };
    let llm = open(&path, |options| options.activations = Activations::F32);
    let file = golden::json("smollm2/greedy.json");
    let tensors = golden::Tensors::open("smollm2/greedy.safetensors");
    let prompts = file["prompts"].as_array().unwrap();
    let asks: Vec<Prompt> = prompts.iter().map(|prompt| Prompt::from(golden::ids(&prompt["ids"]))).collect();
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(64) };
    let outputs = llm.generate(asks, params).unwrap();
    let mut whole = 0;
    for (index, (prompt, output)) in prompts.iter().zip(&outputs).enumerate() {
        let expected = golden::ids(&prompt["greedy_ids"]);
        let Some(step) = output.token_ids.iter().zip(&expected).position(|(ours, theirs)| ours != theirs) else {
            assert_eq!(output.token_ids.len(), expected.len());
            whole += 1;
            continue;
        };
        let top = tensors.floats(&format!("top5_logits.{index:02}"));
        let margin = top[step * 5] - top[step * 5 + 1];
        println!("prompt {index} leaves the recorded path at step {step}, where the margin is {margin:.4}");
        assert!(margin < MARGIN, "prompt {index}, step {step}: margin {margin}");
    }
    println!("{whole} of {} prompts follow the recorded path for all 64 tokens", prompts.len());
    assert!(whole >= 18);
}

#[test]
fn likelihood_is_the_recorded_one() {
    let Some(path) = model() else { return };
    let tensors = golden::Tensors::open("smollm2/perplexity.safetensors");
    let names = tensors.names();
    let ids = tensors.ids(names.iter().find(|name| name.contains("ids")).expect("token ids"));
    let expected = golden::json("smollm2/perplexity.json")["mean_nll"].as_f64().unwrap();
    // Neither activations as whole numbers nor keys and values in eight bits may cost a tenth of a per cent.
    let ways =
        [(Activations::F32, KvDtype::F16), (Activations::Auto, KvDtype::F16), (Activations::Auto, KvDtype::Q8_0)];
    for (activations, kv_dtype) in ways {
        let llm = open(&path, |options| (options.activations, options.kv_dtype) = (activations, kv_dtype));
        let logprobs = llm.score(ids.clone()).unwrap();
        let mean = -logprobs.iter().sum::<f64>() / logprobs.len() as f64;
        let largest =
            tensors.floats("nll").iter().zip(&logprobs).map(|(nll, logprob)| (nll + logprob).abs()).fold(0.0, f64::max);
        println!(
            "{activations}, KV in {kv_dtype}: mean NLL {mean:.6}, recorded {expected:.6}; largest difference of one token {largest:.4}"
        );
        assert!(
            (mean - expected).abs() < 0.0005 * expected,
            "{activations}, {kv_dtype}: mean NLL {mean}, recorded {expected}"
        );
    }
}

#[test]
fn two_thousand_tokens_of_context() {
    let Some(path) = model() else { return };
    let llm = open(&path, |options| options.activations = Activations::F32);
    let tensors = golden::Tensors::open("smollm2/long_context.safetensors");
    let names = tensors.names();
    let ids = tensors.ids(names.iter().find(|name| name.as_str() == "ids").expect("token ids"));
    let file = golden::json("smollm2/long_context.json");
    let expected = golden::ids(&file["greedy_ids"]);
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(32) };
    let output = llm.generate([Prompt::from(ids)], params).unwrap().remove(0);
    match output.token_ids.iter().zip(&expected).position(|(ours, theirs)| ours != theirs) {
        None => assert_eq!(output.token_ids.len(), expected.len()),
        // The recorded path has one close call; only from there on may the text differ.
        Some(step) => {
            let close = file["greedy_min_margin_step"].as_u64().unwrap() as usize;
            let margin = file["greedy_min_margin"].as_f64().unwrap();
            println!("leaves the recorded path at step {step}; the closest call is step {close} with {margin:.4}");
            assert!(step == close && margin < MARGIN, "step {step}");
        }
    }
}
