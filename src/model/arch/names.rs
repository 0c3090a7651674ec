//! Names and shapes of a model's tensors in both kinds of files. All current architectures share them.

use super::super::spec::{ModelSpec, TensorRole};
use crate::weights::tensors::{RowOrder, TensorBinding};

/// Which naming scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Names of the transformers classes, in safetensors files.
    HuggingFace,
    /// Names of ggml.
    Gguf,
}

/// What to find in the files of a model with this spec. `interleaved_pairs`: query and key rows (and biases) are stored
/// as neighbouring pairs.
pub fn bindings(spec: &ModelSpec, kind: FileKind, interleaved_pairs: bool) -> Vec<TensorBinding> {
    let mut bindings = Vec::new();
    let hidden = spec.hidden_size;
    let mut add = |role, shape: &[usize], order| {
        bindings.push(TensorBinding { role, name: tensor_name(role, kind), shape: shape.to_vec(), order });
    };
    use RowOrder::Plain;
    add(TensorRole::Embed, &[spec.vocab_size, hidden], Plain);
    add(TensorRole::FinalNorm, &[hidden], Plain);
    if !spec.tied_head {
        add(TensorRole::Head, &[spec.vocab_size, hidden], Plain);
    }
    for (index, layer) in spec.layers.iter().enumerate() {
        let attn = &layer.attn;
        let (query, kv, mlp) = (attn.query_width(), attn.kv_width(), layer.mlp.intermediate_size);
        let rotary_dim = attn.rope.map_or(0, |rope| spec.ropes[rope].rotary_dim);
        let rotated = match interleaved_pairs {
            true => RowOrder::InterleavedPairs { head_dim: attn.head_dim, rotary_dim },
            false => Plain,
        };
        add(TensorRole::AttnNorm(index), &[hidden], Plain);
        add(TensorRole::Query(index), &[query, hidden], rotated);
        add(TensorRole::Key(index), &[kv, hidden], rotated);
        add(TensorRole::Value(index), &[kv, hidden], Plain);
        add(TensorRole::Output(index), &[hidden, query], Plain);
        if attn.qkv_bias {
            add(TensorRole::QueryBias(index), &[query], rotated);
            add(TensorRole::KeyBias(index), &[kv], rotated);
            add(TensorRole::ValueBias(index), &[kv], Plain);
        }
        if attn.qk_norm.is_some() {
            add(TensorRole::QueryNorm(index), &[attn.head_dim], Plain);
            add(TensorRole::KeyNorm(index), &[attn.head_dim], Plain);
        }
        add(TensorRole::MlpNorm(index), &[hidden], Plain);
        add(TensorRole::Gate(index), &[mlp, hidden], Plain);
        add(TensorRole::Up(index), &[mlp, hidden], Plain);
        add(TensorRole::Down(index), &[hidden, mlp], Plain);
    }
    bindings
}

/// The name of one tensor.
pub fn tensor_name(role: TensorRole, kind: FileKind) -> String {
    // Layer, name in transformers, name in ggml.
    let (layer, hugging_face, gguf) = match role {
        TensorRole::Embed => (None, "embed_tokens.weight", "token_embd.weight"),
        TensorRole::Head => (None, "lm_head.weight", "output.weight"),
        TensorRole::FinalNorm => (None, "norm.weight", "output_norm.weight"),
        TensorRole::AttnNorm(n) => (Some(n), "input_layernorm.weight", "attn_norm.weight"),
        TensorRole::Query(n) => (Some(n), "self_attn.q_proj.weight", "attn_q.weight"),
        TensorRole::Key(n) => (Some(n), "self_attn.k_proj.weight", "attn_k.weight"),
        TensorRole::Value(n) => (Some(n), "self_attn.v_proj.weight", "attn_v.weight"),
        TensorRole::QueryBias(n) => (Some(n), "self_attn.q_proj.bias", "attn_q.bias"),
        TensorRole::KeyBias(n) => (Some(n), "self_attn.k_proj.bias", "attn_k.bias"),
        TensorRole::ValueBias(n) => (Some(n), "self_attn.v_proj.bias", "attn_v.bias"),
        TensorRole::QueryNorm(n) => (Some(n), "self_attn.q_norm.weight", "attn_q_norm.weight"),
        TensorRole::KeyNorm(n) => (Some(n), "self_attn.k_norm.weight", "attn_k_norm.weight"),
        TensorRole::Output(n) => (Some(n), "self_attn.o_proj.weight", "attn_output.weight"),
        TensorRole::MlpNorm(n) => (Some(n), "post_attention_layernorm.weight", "ffn_norm.weight"),
        TensorRole::Gate(n) => (Some(n), "mlp.gate_proj.weight", "ffn_gate.weight"),
        TensorRole::Up(n) => (Some(n), "mlp.up_proj.weight", "ffn_up.weight"),
        TensorRole::Down(n) => (Some(n), "mlp.down_proj.weight", "ffn_down.weight"),
        TensorRole::Router(n) => (Some(n), "mlp.gate.weight", "ffn_gate_inp.weight"),
        TensorRole::OutputBias(n) => (Some(n), "self_attn.o_proj.bias", "attn_output.bias"),
        TensorRole::UpBias(n) => (Some(n), "mlp.up_proj.bias", "ffn_up.bias"),
        TensorRole::DownBias(n) => (Some(n), "mlp.down_proj.bias", "ffn_down.bias"),
        TensorRole::AttnPostNorm(n) => (Some(n), "post_attention_layernorm.weight", "post_attention_norm.weight"),
        TensorRole::MlpPostNorm(n) => (Some(n), "post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
        TensorRole::AttnNormBias(n) => (Some(n), "input_layernorm.bias", "attn_norm.bias"),
        TensorRole::MlpNormBias(n) => (Some(n), "post_attention_layernorm.bias", "ffn_norm.bias"),
        TensorRole::FinalNormBias => (None, "norm.bias", "output_norm.bias"),
        TensorRole::Positions => (None, "embed_positions.weight", "position_embd.weight"),
    };
    match (kind, layer) {
        (FileKind::HuggingFace, None) if role == TensorRole::Head => hugging_face.to_owned(),
        (FileKind::HuggingFace, None) => format!("model.{hugging_face}"),
        (FileKind::HuggingFace, Some(layer)) => format!("model.layers.{layer}.{hugging_face}"),
        (FileKind::Gguf, None) => gguf.to_owned(),
        (FileKind::Gguf, Some(layer)) => format!("blk.{layer}.{gguf}"),
    }
}
