//! A stand-in for a model where none is given: the shapes of SmolLM2-135M with all weights zero, made in memory in an instant.
//! Times do not depend on what weights are.

use octavo::base::DType;
use octavo::error::{Error, Result};
use octavo::model::files::ModelFiles;
use octavo::weights::FileBytes;

const LAYERS: usize = 30;
const HIDDEN: u64 = 576;
const KV: u64 = 192;
const MLP: u64 = 1536;
const VOCAB: u64 = 49_152;
const CONTEXT: u32 = 8192;
const HEADS: u32 = 9;
const KV_HEADS: u32 = 3;

/// Alignment of tensors in the file.
const ALIGN: u64 = 32;

/// Formats whose blocks divide the model's rows, and their numbers in GGUF files.
const FORMATS: [(DType, u32); 10] = [
    (DType::F32, 0),
    (DType::F16, 1),
    (DType::BF16, 30),
    (DType::Q8_0, 8),
    (DType::Q4_0, 2),
    (DType::Q4_1, 3),
    (DType::Q5_0, 6),
    (DType::Q5_1, 7),
    (DType::IQ4_NL, 20),
    (DType::MXFP4, 39),
];

/// The model, its matrices in `format`.
///
/// # Errors
/// Formats whose blocks do not divide the model's rows.
pub fn model(format: DType) -> Result<ModelFiles> {
    let Some((_, kind)) = FORMATS.iter().find(|(known, _)| *known == format) else {
        let known = FORMATS.map(|(dtype, _)| dtype.name()).join(", ");
        return Err(Error::config(format!(
            "--format is {format}, but rows of {HIDDEN} weights are no whole blocks of it; choose one of {known}"
        )));
    };
    let name = format!("shapes of SmolLM2-135M in {format}");
    ModelFiles::from_gguf(FileBytes::Owned(gguf(format, *kind)), name)
}

/// Name, dimensions (innermost first).
fn tensors() -> Vec<(String, Vec<u64>)> {
    let layer = |index: usize| {
        let tensor = move |name: &str, dimensions: &[u64]| (format!("blk.{index}.{name}.weight"), dimensions.to_vec());
        [
            tensor("attn_norm", &[HIDDEN]),
            tensor("attn_q", &[HIDDEN, HIDDEN]),
            tensor("attn_k", &[HIDDEN, KV]),
            tensor("attn_v", &[HIDDEN, KV]),
            tensor("attn_output", &[HIDDEN, HIDDEN]),
            tensor("ffn_norm", &[HIDDEN]),
            tensor("ffn_gate", &[HIDDEN, MLP]),
            tensor("ffn_up", &[HIDDEN, MLP]),
            tensor("ffn_down", &[MLP, HIDDEN]),
        ]
    };
    let ends = [("token_embd.weight".into(), vec![HIDDEN, VOCAB]), ("output_norm.weight".into(), vec![HIDDEN])];
    ends.into_iter().chain((0..LAYERS).flat_map(layer)).collect()
}

/// A GGUF file: header, then zeros.
fn gguf(format: DType, kind: u32) -> Vec<u8> {
    let mut head = Vec::new();
    let tensors = tensors();
    head.extend(b"GGUF");
    head.extend(3u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    let numbers = [
        ("llama.context_length", CONTEXT),
        ("llama.embedding_length", HIDDEN as u32),
        ("llama.block_count", LAYERS as u32),
        ("llama.feed_forward_length", MLP as u32),
        ("llama.attention.head_count", HEADS),
        ("llama.attention.head_count_kv", KV_HEADS),
        ("llama.rope.dimension_count", HIDDEN as u32 / HEADS),
    ];
    let floats = [("llama.rope.freq_base", 100_000.0f32), ("llama.attention.layer_norm_rms_epsilon", 1e-5)];
    head.extend((1 + numbers.len() as u64 + floats.len() as u64).to_le_bytes());
    text(&mut head, "general.architecture");
    head.extend(8u32.to_le_bytes());
    text(&mut head, "llama");
    for (key, value) in numbers {
        text(&mut head, key);
        head.extend(4u32.to_le_bytes());
        head.extend(value.to_le_bytes());
    }
    for (key, value) in floats {
        text(&mut head, key);
        head.extend(6u32.to_le_bytes());
        head.extend(value.to_le_bytes());
    }
    let mut offset = 0u64;
    for (name, dimensions) in &tensors {
        let (dtype, kind) = if dimensions.len() == 1 { (DType::F32, 0) } else { (format, kind) };
        text(&mut head, name);
        head.extend((dimensions.len() as u32).to_le_bytes());
        dimensions.iter().for_each(|dimension| head.extend(dimension.to_le_bytes()));
        head.extend(kind.to_le_bytes());
        head.extend(offset.to_le_bytes());
        let elements: u64 = dimensions.iter().product();
        let bytes = elements / dtype.block_elements() as u64 * dtype.block_bytes() as u64;
        offset += bytes.next_multiple_of(ALIGN);
    }
    let start = (head.len() as u64).next_multiple_of(ALIGN);
    // Asked for as zeros, so that the system hands out pages only where they are read.
    let mut file = vec![0; (start + offset) as usize];
    file[..head.len()].copy_from_slice(&head);
    file
}

fn text(head: &mut Vec<u8>, text: &str) {
    head.extend((text.len() as u64).to_le_bytes());
    head.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stand_in_has_the_shapes_of_the_model() {
        for (format, _) in FORMATS {
            let files = model(format).unwrap();
            let spec = &files.spec;
            assert_eq!((spec.layers.len(), spec.hidden_size, spec.vocab_size), (30, 576, 49_152));
            assert_eq!((spec.layers[29].attn.heads, spec.layers[29].attn.kv_heads), (9, 3));
            assert!(spec.tied_head);
        }
        assert!(model(DType::Q4_K).is_err_and(|error| error.to_string().contains("--format is q4_k")));
    }
}
