//! GGUF files that lie: metadata of any type under any key, tensors of any type, shape, size, place and name, other
//! architectures, and damaged bytes on top.

use super::dice::{Dice, HOSTILE};
use super::tiny_files::{Gguf, Meta};
use std::sync::LazyLock;

const ARCHITECTURES: [&str; 12] = [
    "llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "gpt2", "olmo2", "smollm3", "mistral", "LLaMA ",
];

/// Keys after the name of the architecture that size something or choose how the model is read.
const KEYS: [&str; 27] = [
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "expert_feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.scale",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "expert_count",
    "expert_used_count",
    "vocab_size",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "interleave_moe_layer_step",
];

const COMMON_KEYS: [&str; 16] = [
    "general.architecture",
    "general.alignment",
    "general.file_type",
    "split.count",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.chat_template",
];

static LONG: LazyLock<String> = LazyLock::new(|| "long ".repeat(4000));

/// The file with this seed: always the same bytes.
pub fn case(seed: u64) -> Vec<u8> {
    let mut dice = Dice(seed);
    let mut gguf = Gguf::tiny_llama();
    // A third of the cases keeps its structure and has damaged bytes only.
    let changes = [0, 1, 1, 2, 3, 5];
    for _ in 0..dice.of(&changes) {
        change(&mut dice, &mut gguf);
    }
    let written = gguf.write();
    let (mut bytes, fields) = (written.bytes, written.fields);
    let damages = [0, 0, 1, 1, 2, 4];
    for _ in 0..dice.of(&damages) {
        if dice.one_in(3) {
            dice.damage(&mut bytes, written.data_start);
            continue;
        }
        // A count, length, type, dimension or offset becomes another number, or that of another field: tensors overlap so.
        let (at, width) = dice.of(&fields);
        let value = match dice.one_in(3) {
            true => {
                let (from, width) = dice.of(&fields);
                number_at(&bytes, from, width)
            }
            false => dice.number(),
        };
        if let Some(place) = bytes.get_mut(at..at + width) {
            place.copy_from_slice(&value.to_le_bytes()[..width]);
        }
    }
    bytes
}

fn number_at(bytes: &[u8], at: usize, width: usize) -> u64 {
    let found = bytes.get(at..at + width).unwrap_or(&[]);
    found.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn change(dice: &mut Dice, gguf: &mut Gguf) {
    match dice.below(12) {
        0..4 => {
            let key = key(dice, gguf);
            let value = value(dice);
            *gguf = gguf.clone().set(&key, value);
        }
        4 => {
            let place = dice.below(gguf.pairs.len().max(1));
            if place < gguf.pairs.len() {
                gguf.pairs.remove(place);
            }
        }
        5 => {
            if !gguf.pairs.is_empty() {
                let copy = dice.of(&gguf.pairs);
                gguf.pairs.push(copy);
            }
        }
        6 => rename_architecture(dice, gguf),
        7 => gguf.version = dice.number() as u32,
        _ => change_tensor(dice, gguf),
    }
}

fn key(dice: &mut Dice, gguf: &Gguf) -> String {
    match dice.below(8) {
        0 => dice.of(&["".to_owned(), LONG.clone(), "llama.".to_owned(), "\u{0}".to_owned()]),
        1 | 2 => dice.of(&COMMON_KEYS).to_owned(),
        _ => {
            let named = gguf.pairs.iter().find(|(key, _)| key == "general.architecture");
            let name = match named {
                Some((_, Meta::Text(name))) => name,
                _ => "llama",
            };
            format!("{name}.{}", dice.of(&KEYS))
        }
    }
}

fn value(dice: &mut Dice) -> Meta {
    match dice.below(8) {
        0..3 => Meta::U32(dice.number() as u32),
        3 => Meta::F32(dice.of(&[0.0, -1.0, 1e-38, 1e38, f32::NAN, f32::INFINITY, 0.5, 1e6])),
        4 => Meta::Bool(dice.one_in(2)),
        5 => Meta::Text(dice.of(&[
            "",
            "llama",
            "yarn",
            "longrope",
            "{{ a }}",
            "{% if %}",
            "\u{fffd}\u{0}",
            LONG.as_str(),
        ])),
        6 => {
            let count = dice.of(&[0, 1, 7, 8, 9, 300]);
            Meta::Texts((0..count).map(|n| if dice.one_in(4) { String::new() } else { format!("t {n}") }).collect())
        }
        _ => {
            let count = dice.of(&[0, 1, 7, 8, 9, 300]);
            Meta::I32s((0..count).map(|_| dice.number() as i32).collect())
        }
    }
}

fn rename_architecture(dice: &mut Dice, gguf: &mut Gguf) {
    let name = dice.of(&ARCHITECTURES);
    for (key, value) in &mut gguf.pairs {
        if key == "general.architecture" {
            *value = Meta::Text(name);
        } else if let Some(rest) = key.strip_prefix("llama.") {
            *key = format!("{name}.{rest}");
        }
    }
}

fn change_tensor(dice: &mut Dice, gguf: &mut Gguf) {
    if gguf.tensors.is_empty() {
        return;
    }
    let names =
        ["output.weight", "rope_freqs.weight", "rope_factors_long.weight", "blk.0.ffn_gate_exps.weight", "", "x"];
    let other = dice.of(&gguf.tensors);
    let place = dice.below(gguf.tensors.len());
    let tensor = &mut gguf.tensors[place];
    match dice.below(10) {
        0 => {
            let dimension = dice.below(tensor.dimensions.len().max(1));
            if let Some(size) = tensor.dimensions.get_mut(dimension) {
                *size = dice.number();
            }
        }
        1 => tensor.dimensions.push(dice.of(&[0, 1, 1, 2, u64::MAX])),
        2 => drop(tensor.dimensions.pop()),
        // Any type, known or not, with the bytes of another.
        3 => tensor.kind = dice.below(45) as u32,
        4 => tensor.kind = dice.of(&HOSTILE) as u32,
        5 => {
            let size = dice.of(&[0, 1, 31, 33, 4096]);
            tensor.bytes.resize(size, 0xa5);
        }
        6 => tensor.name = if dice.one_in(8) { LONG.clone() } else { dice.of(&names).to_owned() },
        7 => tensor.name = other.name,
        8 => drop(gguf.tensors.remove(place)),
        _ => gguf.tensors.push(other),
    }
}
