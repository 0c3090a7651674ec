//! The GPU runner against the recorded tokens of another implementation: each tiny model, driven by hand-made plans.

#[path = "common/golden.rs"]
mod golden;
#[path = "common/solo.rs"]
mod solo;

use golden::Tensors;
use octavo::base::{BlockId, Epoch, TokenId};
use octavo::config::{Activations, EngineConfig, EngineOptions, KvDtype};
use octavo::model::files::ModelFiles;
use octavo::reference::{KvPrecision, ReferenceOptions, ReferenceRunner};
use octavo::runner::ModelRunner;
use octavo::runner::wgpu::WgpuRunner;
use solo::Solo;

fn open(model: &str, change: impl FnOnce(&mut EngineOptions)) -> (ModelFiles, WgpuRunner) {
    let files = ModelFiles::open(&golden::path(model)).unwrap();
    let mut options = EngineOptions {
        max_num_seqs: 8,
        max_num_batched_tokens: 128,
        max_model_len: Some(files.spec.max_position_embeddings.min(256)),
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
    let folders = std::fs::read_dir(golden::path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut families: Vec<String> = folders.map(|name| name.into_string().unwrap()).collect();
    families.retain(|name| name.starts_with("tiny-"));
    families.sort();
    assert!(families.len() >= 11, "{families:?}");
    for model in families {
        logits_are_the_recorded_ones(&model);
    }
}

/// Blocks that slid out of the window of every layer get new owners; here it is the same sequence, whose table leads round and
/// round through as few blocks as a window of 24 tokens touches.
#[test]
fn a_sliding_window_reads_no_block_that_slid_out() {
    let (_, mut runner) = open("tiny-mistral", |_| {});
    assert_eq!(runner.capacity().window, Some(24));
    let file = golden::json("tiny-mistral/golden.json");
    let mut epoch = Epoch(1);
    for prompt in file["prompts"].as_array().unwrap() {
        let ids = golden::ids(&prompt["ids"]);
        for (chunk, steps, blocks) in [(16, 1, 3), (16, 16, 3), (8, 4, 3)] {
            let mut solo = Solo { chunk, steps, ..Solo::greedy(ids.len(), 48) };
            for (index, block) in solo.blocks.iter_mut().enumerate() {
                *block = BlockId(5 + index as u32 % blocks);
            }
            let tokens = solo.run(&mut runner, &mut epoch, &ids).ids();
            assert_eq!(tokens, golden::ids(&prompt["greedy_ids"]), "{} tokens, chunks of {chunk}", ids.len());
        }
    }
}

#[test]
fn memory_slides_only_where_every_layer_does() {
    for (model, window) in [("tiny-llama", None), ("tiny-gemma2", None), ("tiny-gemma3", None)] {
        assert_eq!(open(model, |_| {}).1.capacity().window, window, "{model}");
    }
    // A context that ends before the window does.
    let short = open("tiny-mistral", |options| options.max_model_len = Some(24));
    assert_eq!(short.1.capacity().window, None);
}

#[test]
fn gguf_files_give_the_recorded_tokens() {
    let list = golden::json("gguf/gguf.json");
    let files = list["files"].as_array().unwrap();
    assert_eq!(files.len(), 8);
    for file in files {
        // What was recorded was computed in f32.
        let exact = |options: &mut EngineOptions| options.activations = Activations::F32;
        let (_, mut runner) = open(&format!("gguf/{}", file["file"].as_str().unwrap()), exact);
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

/// With activations of twelve bits, which is the default, the recorded tokens follow wherever they were not nearly equal.
#[test]
fn rounded_activations_give_the_recorded_tokens_of_gguf_files() {
    let list = golden::json("gguf/gguf.json");
    let mut followed = 0;
    for file in list["files"].as_array().unwrap() {
        let (_, mut runner) = open(&format!("gguf/{}", file["file"].as_str().unwrap()), |_| {});
        let recorded = Tensors::open(&format!("gguf/{}", file["golden"].as_str().unwrap()));
        let mut epoch = Epoch(1);
        for prompt in file["prompts"].as_array().unwrap() {
            let ids = golden::ids(&prompt["ids"]);
            Solo { steps: 4, ..Solo::greedy(ids.len(), 1) }.run(&mut runner, &mut epoch, &ids);
            let expected = recorded.floats(&format!("last_logits.len{}", ids.len()));
            let difference = largest_difference(&runner.read_logits(1).unwrap().concat(), &expected);
            let spread = expected.iter().fold(0.0f64, |spread, logit| spread.max(logit.abs()));
            // Off by up to a 4094th of the largest of their block, in a dozen products.
            assert!(difference < 12.0 * spread / 4094.0, "{file} {} tokens: {difference} of {spread}", ids.len());
            if prompt["min_margin"].as_f64().unwrap() > 4.0 * difference {
                let solo = Solo { steps: 4, ..Solo::greedy(ids.len(), 24) };
                assert_eq!(solo.run(&mut runner, &mut epoch, &ids).ids(), golden::ids(&prompt["greedy_ids"]), "{file}");
                followed += 1;
            }
        }
    }
    assert!(followed >= 16, "{followed} paths are clear enough to compare");
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
fn tiny_mistral() {
    greedy_tokens_are_the_recorded_ones("tiny-mistral", |_| {});
}

#[test]
fn tiny_gpt2() {
    greedy_tokens_are_the_recorded_ones("tiny-gpt2", |_| {});
}

#[test]
fn tiny_qwen3_moe() {
    greedy_tokens_are_the_recorded_ones("tiny-qwen3-moe", |_| {});
}

#[test]
fn tiny_gemma2() {
    greedy_tokens_are_the_recorded_ones("tiny-gemma2", |_| {});
}

#[test]
fn tiny_gemma3() {
    greedy_tokens_are_the_recorded_ones("tiny-gemma3", |_| {});
}

#[test]
fn tiny_phi3() {
    greedy_tokens_are_the_recorded_ones("tiny-phi3", |_| {});
}

#[test]
fn tiny_olmo2() {
    greedy_tokens_are_the_recorded_ones("tiny-olmo2", |_| {});
}

/// Models with heads of 32 elements: with eight-bit KV the logits are those of the twin that rounds as the device does.
#[test]
fn eight_bit_kv_has_the_logits_of_its_twin() {
    for model in ["tiny-llama3-rope", "tiny-phi3", "tiny-qwen3"] {
        let (files, mut runner) = open(model, |options| options.kv_dtype = KvDtype::Q8_0);
        let room = ReferenceOptions {
            block_count: 1,
            slot_count: 1,
            max_batched_tokens: 1,
            max_model_len: files.spec.max_position_embeddings.min(256) as u32,
            max_steps: 1,
        };
        let mut twin = ReferenceRunner::new(&files, room).unwrap().with_kv_precision(KvPrecision::Q8_0);
        let recorded = Tensors::open(&format!("{model}/golden.safetensors"));
        let mut epoch = Epoch(1);
        for prompt in golden::json(&format!("{model}/golden.json"))["prompts"].as_array().unwrap() {
            let ids = golden::ids(&prompt["ids"]);
            let solo = Solo { score: true, ..Solo::greedy(ids.len(), 1) };
            solo.run(&mut runner, &mut epoch, &ids);
            let logits = runner.read_logits(ids.len()).unwrap().concat();
            let twin = twin.logits(&ids).unwrap().concat();
            let from_twin = largest_difference(&logits, &twin);
            let expected = recorded.floats(&format!("logits.len{}", ids.len()));
            let rounding = twin.iter().zip(&expected).map(|(twin, exact)| (twin - exact).abs()).fold(0.0, f64::max);
            println!("{model} {} tokens: {from_twin:.1e} from the twin, which is {rounding:.1e} from f32", ids.len());
            // Where a value lies halfway between two codes, f32 and f64 may take different ones; a few of those do less than
            // rounding all.
            assert!(rounding > 0.05 && from_twin < 1e-3 + rounding / 8.0, "{model} {} tokens: {from_twin}", ids.len());
        }
    }
}

#[test]
fn half_precision_kv_keeps_the_tokens() {
    greedy_tokens_are_the_recorded_ones("tiny-llama", |options| options.kv_dtype = KvDtype::F16);
}
