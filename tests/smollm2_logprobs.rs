//! Log-probabilities of SmolLM2-135M-Instruct against those of another implementation. The file is not part of the repository:
//! `make test` fetches it; without it this test says so and passes over.

#[path = "common/golden.rs"]
mod golden;
#[path = "common/solo.rs"]
mod solo;

use octavo::base::Epoch;
use octavo::config::{Activations, EngineConfig, EngineOptions, KvDtype};
use octavo::model::files::ModelFiles;
use octavo::runner::wgpu::WgpuRunner;
use octavo::sampling::{SamplingParams, TopLogprobs};
use octavo::sched::plan::StepPlan;
use solo::{Solo, submit_and_wait};
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

/// Largest difference that the recordings allow an f32 engine; logits and the logarithm of their sum may both be off.
const LOGIT: f64 = 5e-3;

#[test]
fn log_probabilities_and_ranks_are_the_recorded_ones() {
    let Some(path) = model() else { return };
    let files = ModelFiles::open(&path).unwrap();
    let options = EngineOptions {
        max_num_seqs: 2,
        // As what was recorded.
        activations: Activations::F32,
        max_num_batched_tokens: 128,
        max_model_len: Some(256),
        num_kv_blocks: Some(16),
        kv_dtype: KvDtype::F32,
        ..EngineOptions::default()
    };
    let config = EngineConfig::new(options, &files.spec).unwrap();
    let mut runner = WgpuRunner::load(&files, &config, &mut |_| {}).unwrap();
    let file = golden::json("smollm2/greedy.json");
    let tensors = golden::Tensors::open("smollm2/greedy.safetensors");
    let (mut epoch, mut largest, mut compared) = (Epoch(1), 0.0f64, 0);
    for index in [0, 5, 14] {
        let prompt = &file["prompts"][index];
        let ids = golden::ids(&prompt["ids"]);
        let greedy = golden::ids(&prompt["greedy_ids"]);
        let tokens = [&ids[..], &greedy[..24]].concat();
        let (top_ids, top_logits) =
            (tensors.ids(&format!("top5_ids.{index:02}")), tensors.floats(&format!("top5_logits.{index:02}")));
        let sums = tensors.floats(&format!("logsumexp.{index:02}"));
        // The recorded answer is scored as if it were a prompt.
        let sampling = SamplingParams { prompt_logprobs: Some(TopLogprobs::Most(5)), ..SamplingParams::default() };
        let solo = Solo { score: true, sampling, chunk: 100, ..Solo::greedy(tokens.len(), 1) };
        for start in (0..tokens.len()).step_by(solo.chunk) {
            let mut plan = if start == 0 { solo.opening(tokens.len()) } else { StepPlan::default() };
            (plan.steps, plan.epoch) = (1, epoch);
            epoch = epoch.next();
            solo.add_chunk(&mut plan, &tokens, start);
            let result = submit_and_wait(&mut runner, &plan);
            for score in &result.scores {
                let Some(step) = (score.position as usize).checked_sub(ids.len()) else { continue };
                let exact = |rank: usize| top_logits[step * 5 + rank] - sums[step];
                let margin = top_logits[step * 5] - top_logits[step * 5 + 1];
                if margin > 2.0 * LOGIT {
                    assert_eq!(score.rank, 1, "prompt {index}, step {step}");
                }
                largest = largest.max((score.logprob - exact(0)).abs());
                for (rank, told) in score.top.of(&result).iter().enumerate() {
                    largest = largest.max((f64::from(told.logprob) - exact(rank)).abs());
                    let gap = |other: usize| (exact(rank) - exact(other)).abs();
                    let clear = [rank.wrapping_sub(1), rank + 1].into_iter().all(|o| o >= 5 || gap(o) > 2.0 * LOGIT);
                    if clear && rank < 4 {
                        assert_eq!(told.token, top_ids[step * 5 + rank], "prompt {index}, step {step}, rank {rank}");
                    }
                    compared += 1;
                }
            }
        }
    }
    println!("{compared} log-probabilities, the largest difference is {largest:.5}");
    assert_eq!(compared, 3 * 24 * 5);
    assert!(largest < 2.0 * LOGIT, "{largest}");
}
