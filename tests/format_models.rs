//! Whole models in the weight formats on the device: files that mix formats per tensor against the f64 reference, and
//! folders that are quantised while they are loaded against files that were quantised before.

#[path = "common/golden.rs"]
mod golden;
#[path = "common/solo.rs"]
mod solo;
mod tiny_files;

use golden::Tensors;
use octavo::base::{DType, Epoch, TokenId};
use octavo::config::{Activations, EngineConfig, EngineOptions, KvDtype};
use octavo::kernels::self_test::data::Source;
use octavo::model::files::ModelFiles;
use octavo::quant;
use octavo::reference::{ReferenceOptions, ReferenceRunner};
use octavo::runner::wgpu::WgpuRunner;
use octavo::weights::pack::device_bytes;
use solo::Solo;
use tiny_files::{Gguf, Meta, Tensor};

const HIDDEN: usize = 256;
const MLP: usize = 512;
const VOCAB: usize = 96;

fn load(files: &ModelFiles, quantize: Option<DType>, activations: Activations) -> WgpuRunner {
    let options = EngineOptions {
        max_num_seqs: 4,
        max_num_batched_tokens: 128,
        max_model_len: Some(128),
        num_kv_blocks: Some(32),
        kv_dtype: KvDtype::F32,
        quantize,
        activations,
        ..EngineOptions::default()
    };
    let config = EngineConfig::new(options, &files.spec).unwrap();
    WgpuRunner::load(files, &config, &mut |_| {}).unwrap()
}

/// Number of a type in GGUF files, as the specification of ggml gives it.
fn type_number(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q8_0 => 8,
        DType::Q2_K => 10,
        DType::Q3_K => 11,
        DType::Q4_K => 12,
        DType::Q5_K => 13,
        DType::Q6_K => 14,
        DType::IQ4_NL => 20,
        DType::IQ4_XS => 23,
        DType::BF16 => 30,
        DType::MXFP4 => 39,
    }
}

/// Random weights of a root mean square near 1/16: random codes under one pair of scales, which is then set to fit.
fn weights(source: &mut Source, dtype: DType, elements: usize) -> Vec<u8> {
    const SIZE: f64 = 1.0 / 16.0;
    if dtype.is_plain() {
        let values = (0..elements).map(|_| 0.1 * source.unit());
        return match dtype {
            DType::F32 => values.flat_map(f32::to_le_bytes).collect(),
            DType::F16 => values.flat_map(|value| half::f16::from_f32(value).to_le_bytes()).collect(),
            _ => values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect(),
        };
    }
    // Where a block keeps its scale and its minimum, and how many scales a centred minimum is.
    let (scale_at, min) = match dtype {
        DType::Q4_1 => (0, Some((2, -7.5))),
        DType::Q5_1 => (0, Some((2, -15.5))),
        DType::Q2_K => (80, Some((82, 1.5))),
        DType::Q4_K => (0, Some((2, 7.5))),
        DType::Q5_K => (0, Some((2, 15.5))),
        DType::Q3_K => (108, None),
        DType::Q6_K => (208, None),
        _ => (0, None),
    };
    let count = elements / dtype.block_elements();
    let mut bytes: Vec<u8> = (0..count * dtype.block_bytes()).map(|_| source.word() as u8).collect();
    let mut set = |scale: f32| {
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            if dtype == DType::MXFP4 {
                block[0] = 121; // 2^-6, times up to 6
                continue;
            }
            let mut put = |at: usize, value: f32| {
                block[at..at + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
            };
            put(scale_at, scale);
            if let Some((at, times)) = min {
                put(at, scale * times);
            }
        }
        let mut values = vec![0.0; elements];
        quant::decode(dtype, &bytes, &mut values);
        (values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / elements as f64).sqrt()
    };
    let size = set(1.0);
    let size = set((SIZE / size) as f32);
    assert!((0.4..2.5).contains(&(size / SIZE)), "{dtype}: {size}");
    bytes
}

/// A llama model of two layers whose matrices have the types that `choose` gives, by tensor name.
fn mixed_model(choose: &dyn Fn(&str) -> DType) -> ModelFiles {
    damaged_model(choose, None)
}

/// The same, with one weight of the named norm replaced.
fn damaged_model(choose: &dyn Fn(&str) -> DType, damage: Option<(&str, f32)>) -> ModelFiles {
    let number = |gguf: Gguf, key: &str, value: usize| gguf.set(key, Meta::U32(value as u32));
    let mut gguf = Gguf::tiny_llama()
        .set("tokenizer.ggml.tokens", Meta::Texts((0..VOCAB).map(|n| format!("t{n}")).collect()))
        .set("tokenizer.ggml.token_type", Meta::I32s(vec![1; VOCAB]));
    for (key, value) in [
        ("llama.context_length", 256),
        ("llama.embedding_length", HIDDEN),
        ("llama.block_count", 2),
        ("llama.feed_forward_length", MLP),
        ("llama.attention.head_count", 4),
        ("llama.attention.head_count_kv", 2),
        ("llama.rope.dimension_count", HIDDEN / 4),
    ] {
        gguf = number(gguf, key, value);
    }
    let mut shapes = vec![
        ("token_embd.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("output.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("output_norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..2 {
        let kv = HIDDEN / 2;
        for (name, shape) in [
            ("attn_norm", vec![HIDDEN]),
            ("attn_q", vec![HIDDEN, HIDDEN]),
            ("attn_k", vec![kv, HIDDEN]),
            ("attn_v", vec![kv, HIDDEN]),
            ("attn_output", vec![HIDDEN, HIDDEN]),
            ("ffn_norm", vec![HIDDEN]),
            ("ffn_gate", vec![MLP, HIDDEN]),
            ("ffn_up", vec![MLP, HIDDEN]),
            ("ffn_down", vec![HIDDEN, MLP]),
        ] {
            shapes.push((format!("blk.{layer}.{name}.weight"), shape));
        }
    }
    let mut source = Source::new(2026);
    gguf.tensors.clear();
    for (name, shape) in shapes {
        let elements = shape.iter().product();
        let dimensions = shape.iter().rev().map(|&n| n as u64).collect();
        let dtype = if shape.len() == 1 { DType::F32 } else { choose(&name) };
        let mut bytes: Vec<u8> = match shape.len() {
            1 => (0..elements).flat_map(|_| (1.0 + 0.3 * source.unit()).to_le_bytes()).collect(),
            _ => weights(&mut source, dtype, elements),
        };
        if let Some((_, value)) = damage.filter(|(damaged, _)| *damaged == name) {
            bytes[20..24].copy_from_slice(&value.to_le_bytes());
        }
        gguf.tensors.push(Tensor { name, dimensions, kind: type_number(dtype), bytes });
    }
    gguf.open().unwrap_or_else(|error| panic!("{error}"))
}

/// Logits of every position, and twelve greedy tokens, on the device and by the reference.
fn device_agrees_with_reference(what: &str, files: &ModelFiles) {
    let prompt: Vec<TokenId> = (0..21).map(|n| (n * 29 + 5) % VOCAB as u32).collect();
    let options =
        ReferenceOptions { block_count: 32, slot_count: 4, max_batched_tokens: 128, max_model_len: 128, max_steps: 4 };
    let mut reference = ReferenceRunner::new(files, options).unwrap();
    let expected = reference.trace(&prompt).unwrap().logits;
    let spread = expected.iter().flatten().map(|logit| logit.abs()).fold(0.0, f64::max);
    let solo = Solo { steps: 4, ..Solo::greedy(prompt.len(), 13) };
    let tokens = solo.run(&mut reference, &mut Epoch(1), &prompt).ids();
    // Decoding is exact, so that what remains is the rounding of f32 sums: as for the recorded models, whose logits are of this
    // size. Activations of twelve bits are off by up to a 4094th of the largest of their block, in a dozen products.
    for (activations, allowed) in [(Activations::F32, 1e-3), (Activations::Int12, 12.0 * spread / 4094.0)] {
        let mut runner = load(files, None, activations);
        Solo { score: true, ..Solo::greedy(prompt.len(), 1) }.run(&mut runner, &mut Epoch(1), &prompt);
        let found = runner.read_logits(prompt.len()).unwrap();
        let difference = (found.iter().flatten())
            .zip(expected.iter().flatten())
            .map(|(&found, expected)| (f64::from(found) - expected).abs())
            .fold(0.0, f64::max);
        println!("{what}, {activations}: logits up to {spread:.2}, largest difference {difference:.1e}");
        assert!(spread > 1.0 && difference < allowed, "{what}, {activations}: {difference} of {spread}");
        assert_eq!(solo.run(&mut runner, &mut Epoch(10), &prompt).ids(), tokens, "{what}, {activations}");
    }
}

/// Rounding activations to whole numbers must not hide what is not finite.
#[test]
fn a_broken_weight_is_seen_in_the_logits() {
    for norm in ["output_norm.weight", "blk.0.attn_norm.weight", "blk.1.ffn_norm.weight"] {
        for value in [f32::NAN, f32::INFINITY] {
            let files = damaged_model(&|_| DType::Q8_0, Some((norm, value)));
            for activations in [Activations::F32, Activations::Int12] {
                let mut runner = load(&files, None, activations);
                let output = Solo::greedy(7, 2).run(&mut runner, &mut Epoch(1), &[1, 2, 3, 4, 5, 6, 7]);
                assert_eq!(output.tokens, [None], "{value} in {norm}, {activations}");
            }
        }
    }
}

/// As the usual files of this name: half of the value and down projections, and the embedding, are more precise.
#[test]
fn a_q4_k_m_file() {
    let files = mixed_model(&|name| match name {
        "token_embd.weight" | "output.weight" => DType::Q6_K,
        "blk.0.attn_v.weight" | "blk.0.ffn_down.weight" => DType::Q6_K,
        "blk.1.attn_v.weight" => DType::Q5_K,
        _ => DType::Q4_K,
    });
    device_agrees_with_reference("Q4_K_M", &files);
}

/// Every format serves as some matrix of one model; gate and up differ, and so do query, key and value.
#[test]
fn a_file_of_all_formats() {
    let types = DType::ALL;
    let files = mixed_model(&|name| match name {
        "token_embd.weight" => DType::IQ4_XS,
        "output.weight" => DType::MXFP4,
        _ => {
            let layer = if name.starts_with("blk.0") { 0 } else { 7 };
            let names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
            let place = names.iter().position(|part| name.contains(part)).expect("a matrix of a layer");
            types[layer + place]
        }
    });
    let found: Vec<DType> =
        DType::ALL.into_iter().filter(|dtype| files.tensors.infos().any(|t| t.dtype == *dtype)).collect();
    assert_eq!(found, DType::ALL);
    device_agrees_with_reference("all formats", &files);
}

/// The files were quantised by other software from the very numbers of the folder, so the recorded logits hold for both.
#[test]
fn a_folder_quantised_while_loading_gives_the_logits_of_the_quantised_file() {
    let folder = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    let list = golden::json("gguf/gguf.json");
    for (dtype, name) in [(DType::Q8_0, "Q8_0"), (DType::Q4_0, "Q4_0")] {
        let recorded = Tensors::open(&format!("gguf/tiny-llama.{name}.golden.safetensors"));
        let files = list["files"].as_array().unwrap();
        let file = files.iter().find(|file| file["file"] == format!("tiny-llama.{name}.gguf")).unwrap();
        let stored = ModelFiles::open(&golden::path(&format!("gguf/tiny-llama.{name}.gguf"))).unwrap();
        let (mut runner, mut other) =
            (load(&folder, Some(dtype), Activations::F32), load(&stored, None, Activations::F32));
        assert_eq!(runner.info().weight_bytes, other.info().weight_bytes, "{name}");
        let mut epoch = Epoch(1);
        for prompt in file["prompts"].as_array().unwrap() {
            let ids = golden::ids(&prompt["ids"]);
            let expected = recorded.floats(&format!("last_logits.len{}", ids.len()));
            let mut logits = Vec::new();
            for runner in [&mut runner, &mut other] {
                Solo::greedy(ids.len(), 1).run(runner, &mut epoch, &ids);
                logits.push(runner.read_logits(1).unwrap().concat());
            }
            // The same planes, so the same bits.
            assert!(logits[0] == logits[1], "{name}, {} tokens", ids.len());
            let difference =
                logits[0].iter().zip(&expected).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
            assert!(difference < 1e-3, "{name}, {} tokens: {difference}", ids.len());
        }
        let ids = golden::ids(&file["prompts"][2]["ids"]);
        let tokens = Solo { steps: 4, ..Solo::greedy(ids.len(), 24) }.run(&mut runner, &mut epoch, &ids).ids();
        assert_eq!(tokens, golden::ids(&file["prompts"][2]["greedy_ids"]), "{name}");
    }
}

#[test]
fn estimates_count_what_the_device_will_hold() {
    let folder = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    let estimate = |quantize| folder.tensors.infos().map(|info| device_bytes(info, quantize)).sum::<u64>();
    // Sixteen bytes of codes and half a word of scales for each block of 32 columns; norms in f32.
    let q4_0 = |shape: &[usize]| match shape {
        [rows, columns] => rows * (columns / 32 * 16 + (columns / 32).div_ceil(2) * 4),
        vector => 4 * vector[0],
    };
    let expected: usize = folder.tensors.infos().map(|info| q4_0(&info.shape)).sum();
    assert_eq!(estimate(Some(DType::Q4_0)), expected as u64);
    for quantize in [None, Some(DType::Q4_0)] {
        let (loaded, bytes) = (load(&folder, quantize, Activations::Auto).info().weight_bytes, estimate(quantize));
        // Norms are not counted there; rows are padded to whole groups of 32, and here 515 of them to 544.
        assert!((0.95..1.05).contains(&(loaded as f64 / bytes as f64)), "{quantize:?}: {loaded} of {bytes}");
    }
    // What is quantised already counts as it is.
    let stored = ModelFiles::open(&golden::path("gguf/tiny-llama.Q4_0.gguf")).unwrap();
    let bytes = |quantize| stored.tensors.infos().map(|info| device_bytes(info, quantize)).sum::<u64>();
    assert_eq!(bytes(Some(DType::Q8_0)), bytes(None));
}
