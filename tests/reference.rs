//! The f64 reference against recorded results of other software, and against itself under different plans.

#[path = "common/golden.rs"]
mod golden;
#[path = "common/solo.rs"]
mod solo;

use golden::Tensors;
use octavo::base::{BlockId, Epoch, SeqId, SlotId, TokenId};
use octavo::model::files::ModelFiles;
use octavo::reference::KvPrecision;
use octavo::reference::model::Tap;
use octavo::reference::{ReferenceOptions, ReferenceRunner, sample, score};
use octavo::runner::ModelRunner;
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::{BlockCopy, DecodeRow, StepPlan};
use solo::{Output, Solo, submit_and_wait};

const MODELS: [&str; 11] = [
    "tiny-llama",
    "tiny-llama3-rope",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-mistral",
    "tiny-gpt2",
    "tiny-qwen3-moe",
    "tiny-gemma2",
    "tiny-gemma3",
    "tiny-phi3",
    "tiny-olmo2",
];

/// The recorded results are f32 arithmetic, which a second f64 implementation found within 6e-5 of the truth; it
/// asks for 1e-4 itself (check_numpy.py beside the recordings).
const LOGIT_TOLERANCE: f64 = 1e-4;

/// Of a tensor's largest value: a chain of a few hundred f32 roundings of 6e-8 each.
const TRACE_TOLERANCE: f64 = 2e-5;

fn runner(model: &str) -> ReferenceRunner {
    let files = ModelFiles::open(&golden::path(model)).unwrap_or_else(|e| panic!("{model}: {e}"));
    let max_model_len = files.spec.max_position_embeddings.min(256) as u32;
    let options =
        ReferenceOptions { block_count: 64, slot_count: 4, max_batched_tokens: 256, max_model_len, max_steps: 16 };
    ReferenceRunner::new(&files, options).unwrap_or_else(|e| panic!("{model}: {e}"))
}

struct Prompt {
    name: String,
    ids: Vec<TokenId>,
    greedy: Vec<TokenId>,
    margin: f64,
}

fn prompts(file: &serde_json::Value) -> Vec<Prompt> {
    let prompts: Vec<Prompt> = file["prompts"]
        .as_array()
        .expect("prompts")
        .iter()
        .map(|prompt| Prompt {
            name: prompt["name"].as_str().expect("a name").to_string(),
            ids: golden::ids(&prompt["ids"]),
            greedy: golden::ids(&prompt["greedy_ids"]),
            margin: prompt["min_margin"].as_f64().expect("a margin"),
        })
        .collect();
    assert_eq!(prompts.len(), 6);
    prompts
}

fn model_prompts(model: &str) -> Vec<Prompt> {
    prompts(&golden::json(&format!("{model}/golden.json")))
}

fn largest_difference(ours: &[f64], recorded: &[f64]) -> f64 {
    assert_eq!(ours.len(), recorded.len());
    assert!(ours.iter().all(|value| value.is_finite()));
    ours.iter().zip(recorded).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// Greedy tokens are comparable where no two logits are closer than the sum of both errors.
fn assert_comparable(prompt: &Prompt) {
    assert!(prompt.margin > 2.0 * LOGIT_TOLERANCE, "{} has a margin of {}", prompt.name, prompt.margin);
}

#[test]
fn logits_of_every_position_match_the_recordings() {
    for model in MODELS {
        let recorded = Tensors::open(&format!("{model}/golden.safetensors"));
        let mut runner = runner(model);
        for prompt in model_prompts(model) {
            let ours = runner.logits(&prompt.ids).unwrap().concat();
            let difference = largest_difference(&ours, &recorded.floats(&format!("logits.{}", prompt.name)));
            println!("{model} {}: {difference:.1e}", prompt.name);
            assert!(difference < LOGIT_TOLERANCE, "{model} {}: {difference}", prompt.name);
        }
    }
}

#[test]
fn hidden_states_keys_and_values_match_the_recordings() {
    for model in MODELS {
        let recorded = Tensors::open(&format!("{model}/golden.safetensors"));
        let mut runner = runner(model);
        let prompt = model_prompts(model).into_iter().find(|prompt| prompt.name == "len33").unwrap();
        let trace = runner.trace(&prompt.ids).unwrap();
        let check = |name: &str, ours: &[f64]| {
            let recorded = recorded.floats(name);
            let largest = recorded.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
            let difference = largest_difference(ours, &recorded) / largest;
            println!("{model} {name}: {difference:.1e} of {largest:.1}");
            assert!(difference < TRACE_TOLERANCE, "{model} {name}: {difference}");
        };
        check("hidden.embed", trace.at(Tap::Embed).unwrap());
        let layers = trace.keys.len();
        let recorded_layers = recorded.names().iter().filter(|name| name.starts_with("hidden.layer")).count();
        assert_eq!(layers, recorded_layers);
        for layer in 0..layers {
            check(&format!("attn_out.layer{layer}"), trace.at(Tap::Attention(layer)).unwrap());
            check(&format!("mlp_out.layer{layer}"), trace.at(Tap::Mlp(layer)).unwrap());
            check(&format!("hidden.layer{layer}"), trace.at(Tap::Layer(layer)).unwrap());
        }
        check("hidden.final_norm", trace.at(Tap::FinalNorm).unwrap());
        for (name, rows) in [("kv.layer0.k", &trace.keys[0]), ("kv.layer0.v", &trace.values[0])] {
            check(name, &heads_first(rows, &recorded.shape(name)));
        }
    }
}

/// `[tokens][heads][dim]` to `[heads][tokens][dim]`, which is `shape`.
fn heads_first(rows: &[f64], shape: &[usize]) -> Vec<f64> {
    let [heads, tokens, dim] = shape else { panic!("{shape:?}") };
    let mut out = Vec::new();
    for head in 0..*heads {
        for token in 0..*tokens {
            out.extend(&rows[(token * heads + head) * dim..][..*dim]);
        }
    }
    out
}

#[test]
fn files_of_the_original_gpt2_repositories_are_the_same_model() {
    let mut renamed = runner("tiny-gpt2/hub-names");
    let mut original = runner("tiny-gpt2");
    for prompt in model_prompts("tiny-gpt2") {
        assert_eq!(renamed.logits(&prompt.ids).unwrap(), original.logits(&prompt.ids).unwrap());
    }
}

#[test]
fn greedy_tokens_match_the_recordings_in_any_pieces() {
    for model in MODELS {
        let mut runner = runner(model);
        let mut epoch = Epoch(1);
        // A prompt for each way to run it, so that all sizes meet every block border.
        let ways = [(1000, 1), (1, 4), (7, 16), (16, 3), (5, 1), (33, 16)];
        for (prompt, (chunk, steps)) in model_prompts(model).into_iter().zip(ways) {
            assert_comparable(&prompt);
            let solo = Solo { chunk, steps, ..Solo::greedy(prompt.ids.len(), 48) };
            let ids = solo.run(&mut runner, &mut epoch, &prompt.ids).ids();
            assert_eq!(ids, prompt.greedy, "{model} {} in chunks of {chunk} and {steps} steps", prompt.name);
        }
    }
}

#[test]
fn gguf_files_give_the_recorded_logits_and_tokens() {
    let list = golden::json("gguf/gguf.json");
    let files = list["files"].as_array().unwrap();
    assert_eq!(files.len(), 8);
    for file in files {
        let name = file["file"].as_str().unwrap();
        let recorded = Tensors::open(&format!("gguf/{}", file["golden"].as_str().unwrap()));
        let mut runner = runner(&format!("gguf/{name}"));
        let mut epoch = Epoch(1);
        for prompt in prompts(file) {
            let logits = runner.logits(&prompt.ids).unwrap();
            let recorded = recorded.floats(&format!("last_logits.{}", prompt.name));
            let difference = largest_difference(logits.last().unwrap(), &recorded);
            println!("{name} {}: {difference:.1e}", prompt.name);
            assert!(difference < LOGIT_TOLERANCE, "{name} {}: {difference}", prompt.name);

            assert_comparable(&prompt);
            let solo = Solo { steps: 4, ..Solo::greedy(prompt.ids.len(), 24) };
            assert_eq!(solo.run(&mut runner, &mut epoch, &prompt.ids).ids(), prompt.greedy, "{name} {}", prompt.name);
        }
    }
}

#[test]
fn scores_are_the_log_probabilities_of_the_following_tokens() {
    for model in ["tiny-llama", "tiny-qwen3"] {
        let recorded = Tensors::open(&format!("{model}/golden.safetensors"));
        let mut runner = runner(model);
        let vocab = runner.capacity().vocab_size as usize;
        let prompt = model_prompts(model).into_iter().find(|prompt| prompt.name == "len33").unwrap();
        let logits = recorded.f32s("logits.len33");
        let expected: Vec<f64> =
            logits.chunks(vocab).zip(&prompt.ids[1..]).map(|(row, &next)| score::logprob(row, next)).collect();
        for chunk in [33, 16, 7, 1] {
            let solo = Solo { chunk, score: true, ..Solo::greedy(33, 1) };
            let Output { scores, .. } = solo.run(&mut runner, &mut Epoch(1), &prompt.ids);
            let positions: Vec<u32> = scores.iter().map(|score| score.position).collect();
            assert_eq!(positions, (1..33).collect::<Vec<u32>>(), "chunks of {chunk}");
            for (score, expected) in scores.iter().zip(&expected) {
                // A log-probability moves by at most the errors of the logit and of the largest logits together.
                let difference = (score.logprob - expected).abs();
                assert!(difference < 2.0 * LOGIT_TOLERANCE, "{model} {score:?}, expected {expected}");
            }
        }
    }
}

/// Sequences with different prompts, sampling and seeds.
fn crowd(model: &str) -> Vec<(Vec<TokenId>, Solo)> {
    let sampled = SamplingParams { temperature: 0.9, top_k: 50, top_p: 0.95, ..Default::default() };
    let hot = SamplingParams { temperature: 1.5, min_p: 0.02, ..Default::default() };
    let prompts = model_prompts(model).into_iter().map(|prompt| prompt.ids).filter(|ids| ids.len() < 40);
    // The first needs no more than 4 blocks, any other at most 5: every table is scattered over the pool.
    let scattered = |slot: u32| (0..5).map(|i| BlockId((slot * 5 + i) * 29 % 64)).collect();
    prompts
        .skip(1)
        .zip([SamplingParams::default(), sampled, hot.clone(), hot])
        .zip(0..)
        .map(|((ids, sampling), slot)| {
            let solo = Solo {
                seq: SeqId(100 + u64::from(slot)),
                slot: SlotId(slot),
                blocks: scattered(slot),
                sampling,
                seed: 0x1234_5678_9abc + u64::from(slot),
                ..Solo::greedy(ids.len(), 30)
            };
            (ids, solo)
        })
        .collect()
}

#[test]
fn a_crowd_gets_the_tokens_that_each_would_get_alone() {
    for model in ["tiny-llama3-rope", "tiny-qwen2"] {
        let crowd = crowd(model);
        assert_eq!(crowd.len(), 4);
        let mut lone_runner = runner(model);
        let alone: Vec<Vec<TokenId>> =
            crowd.iter().map(|(ids, solo)| solo.run(&mut lone_runner, &mut Epoch(1), ids).ids()).collect();

        // Sequence n joins in plan n with a chunk of its own size; the others decode beside it.
        let mut runner = runner(model);
        let mut together: Vec<Vec<TokenId>> = vec![Vec::new(); crowd.len()];
        let mut computed = vec![0; crowd.len()];
        for number in 0.. {
            let mut plan = StepPlan { epoch: Epoch(number), steps: 1, ..StepPlan::default() };
            for (index, (ids, solo)) in crowd.iter().enumerate() {
                let solo = Solo { chunk: 5 + 4 * index, ..solo.clone() };
                if (number as usize) < index || together[index].len() == 30 {
                    continue;
                }
                if computed[index] < ids.len() {
                    if computed[index] == 0 {
                        let opening = solo.opening(ids.len());
                        plan.new_slots.extend(opening.new_slots);
                        plan.table_updates.extend(opening.table_updates);
                    }
                    solo.add_chunk(&mut plan, ids, computed[index]);
                    computed[index] = (computed[index] + solo.chunk).min(ids.len());
                } else {
                    let position = (ids.len() + together[index].len() - 1) as u32;
                    plan.decode.push(DecodeRow { seq: solo.seq, slot: solo.slot, position });
                }
            }
            if plan.is_empty() {
                break;
            }
            for sampled in submit_and_wait(&mut runner, &plan).tokens {
                together[sampled.slot.index()].push(sampled.token.unwrap());
            }
        }
        assert_eq!(together, alone, "{model}");
    }
}

#[test]
fn rows_stop_inside_a_submission() {
    let mut runner = runner("tiny-llama");
    let prompt = model_prompts("tiny-llama").remove(1);
    let stop = prompt.greedy[9];
    let first = prompt.greedy.iter().position(|&id| id == stop).unwrap();
    let solo = Solo { steps: 16, stops: vec![stop], ..Solo::greedy(prompt.ids.len(), 48) };
    assert_eq!(solo.run(&mut runner, &mut Epoch(1), &prompt.ids).ids(), prompt.greedy[..=first]);
    let solo = Solo { steps: 16, ..Solo::greedy(prompt.ids.len(), 20) };
    assert_eq!(solo.run(&mut runner, &mut Epoch(1), &prompt.ids).ids(), prompt.greedy[..20]);
}

#[test]
fn shared_and_copied_blocks_replace_prefill() {
    let mut runner = runner("tiny-qwen3");
    let prompt = model_prompts("tiny-qwen3").into_iter().find(|prompt| prompt.name == "len33").unwrap();
    let mut epoch = Epoch(1);
    let first = Solo::greedy(33, 48);
    assert_eq!(first.run(&mut runner, &mut epoch, &prompt.ids).ids(), prompt.greedy);

    // Two full blocks of the prompt stay where they are, or are copied; the rest of the table is new.
    let shared = Solo { cached: 32, blocks: [0, 1, 20, 21, 22, 23].map(BlockId).into(), ..first.clone() };
    assert_eq!(shared.run(&mut runner, &mut epoch, &prompt.ids).ids(), prompt.greedy);
    let copies = vec![
        BlockCopy { source: BlockId(0), target: BlockId(30) },
        BlockCopy { source: BlockId(1), target: BlockId(31) },
    ];
    let copied = Solo { copies, cached: 32, blocks: [30, 31, 40, 41, 42, 43].map(BlockId).into(), ..first };
    assert_eq!(copied.run(&mut runner, &mut epoch, &prompt.ids).ids(), prompt.greedy);
}

#[test]
fn f16_kv_keeps_the_greedy_tokens() {
    for model in MODELS {
        let mut runner = runner(model).with_kv_precision(KvPrecision::F16);
        for prompt in model_prompts(model) {
            let solo = Solo { steps: 8, ..Solo::greedy(prompt.ids.len(), 48) };
            let ids = solo.run(&mut runner, &mut Epoch(1), &prompt.ids).ids();
            assert_eq!(ids, prompt.greedy, "{model} {}", prompt.name);
        }
    }
}

#[test]
fn draws_count_tokens_from_the_start_of_the_sequence() {
    let params = SamplingParams { temperature: 1.2, top_p: 0.98, ..Default::default() };
    let mut runner = runner("tiny-llama");
    let prompt = model_prompts("tiny-llama").remove(1).ids;
    let seed = 0xfeed_0000_0042;
    let solo = Solo { sampling: params.clone(), seed, steps: 4, ..Solo::greedy(prompt.len(), 20) };
    let drawn = solo.run(&mut runner, &mut Epoch(1), &prompt).ids();
    let mut tokens = prompt;
    for token in drawn {
        let logits: Vec<f32> = runner.logits(&tokens).unwrap().last().unwrap().iter().map(|&l| l as f32).collect();
        let row = SamplingRow::new(&params, seed, &[]);
        assert_eq!(Some(token), sample::pick_plain(&logits, &row, tokens.len() as u32), "token {}", tokens.len());
        tokens.push(token);
    }
}
