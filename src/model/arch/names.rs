//! Names and shapes of a model's tensors in both kinds of files. Architectures change what differs ([`Architecture::place`]).

use super::super::spec::{MlpKind, ModelSpec, NormKind, NormSpec, TensorRole};
use super::Architecture;
use crate::weights::source::WeightSource;
use crate::weights::tensors::{Part, RowOrder, TensorBinding};

/// Which naming scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Names of the transformers classes, in safetensors files.
    HuggingFace,
    /// Names of ggml.
    Gguf,
}

/// What to find in the files of a model with this spec.
pub fn bindings(
    arch: &dyn Architecture,
    spec: &ModelSpec,
    kind: FileKind,
    files: &dyn WeightSource,
) -> Vec<TensorBinding> {
    let interleaved = kind == FileKind::Gguf && arch.gguf_interleaves_pairs();
    let mut bindings = Vec::new();
    for wanted in wanted(spec) {
        let place = |binding: TensorBinding| {
            let order = match wanted.rotates {
                Some((head_dim, rotary_dim)) if interleaved => RowOrder::InterleavedPairs { head_dim, rotary_dim },
                _ => RowOrder::Plain,
            };
            arch.place(TensorBinding { order, ..binding }, spec, kind, files)
        };
        match wanted.experts {
            None => {
                bindings.push(place(TensorBinding::new(wanted.role, tensor_name(wanted.role, kind), &wanted.shape)))
            }
            Some(count) => bindings
                .extend((0..count).map(|index| place(expert_binding(wanted.role, kind, index, count, &wanted.shape)))),
        }
    }
    bindings
}

/// One tensor that a model needs.
struct Wanted {
    role: TensorRole,
    shape: Vec<usize>,
    /// Head width and rotary width, where rows are elements of heads that rotate.
    rotates: Option<(usize, usize)>,
    /// How many such tensors, where each expert has one.
    experts: Option<usize>,
}

fn wanted(spec: &ModelSpec) -> Vec<Wanted> {
    use TensorRole as R;
    let mut all = Vec::new();
    let hidden = spec.hidden_size;
    let mut add = |role, shape: &[usize], rotates, experts| {
        all.push(Wanted { role, shape: shape.to_vec(), rotates, experts });
    };
    add(R::Embed, &[spec.vocab_size, hidden], None, None);
    if spec.learned_positions {
        add(R::Positions, &[spec.max_position_embeddings, hidden], None, None);
    }
    add(R::FinalNorm, &[hidden], None, None);
    if spec.final_norm.kind == NormKind::Layer {
        add(R::FinalNormBias, &[hidden], None, None);
    }
    if !spec.tied_head {
        add(R::Head, &[spec.vocab_size, hidden], None, None);
    }
    for (n, layer) in spec.layers.iter().enumerate() {
        let attn = &layer.attn;
        let (query, kv, mlp) = (attn.query_width(), attn.kv_width(), layer.mlp.intermediate_size);
        // Layers without rotation are stored in the order of their family all the same.
        let rotary_dim = spec.ropes.get(attn.rope.unwrap_or(0)).map(|rope| rope.rotary_dim);
        let rotates = rotary_dim.map(|rotary_dim| (attn.head_dim, rotary_dim));
        let has_bias = |norm: Option<NormSpec>| norm.is_some_and(|norm| norm.kind == NormKind::Layer);
        for (norm, weight, bias) in [
            (layer.attn_norm, R::AttnNorm(n), Some(R::AttnNormBias(n))),
            (layer.attn_post_norm, R::AttnPostNorm(n), None),
            (layer.mlp_norm, R::MlpNorm(n), Some(R::MlpNormBias(n))),
            (layer.mlp_post_norm, R::MlpPostNorm(n), None),
        ] {
            if norm.is_some() {
                add(weight, &[hidden], None, None);
            }
            if let Some(bias) = bias.filter(|_| has_bias(norm)) {
                add(bias, &[hidden], None, None);
            }
        }
        add(R::Query(n), &[query, hidden], rotates, None);
        add(R::Key(n), &[kv, hidden], rotates, None);
        add(R::Value(n), &[kv, hidden], None, None);
        add(R::Output(n), &[hidden, query], None, None);
        if attn.qkv_bias {
            add(R::QueryBias(n), &[query], rotates, None);
            add(R::KeyBias(n), &[kv], rotates, None);
            add(R::ValueBias(n), &[kv], None, None);
        }
        if attn.output_bias {
            add(R::OutputBias(n), &[hidden], None, None);
        }
        if let Some(norm) = attn.qk_norm {
            let width = |heads: usize| if norm.whole_row { heads * attn.head_dim } else { attn.head_dim };
            add(R::QueryNorm(n), &[width(attn.heads)], None, None);
            add(R::KeyNorm(n), &[width(attn.kv_heads)], None, None);
        }
        let experts = match layer.mlp.kind {
            MlpKind::Experts { count, .. } => Some(count),
            MlpKind::Gated | MlpKind::Plain => None,
        };
        if let Some(count) = experts {
            add(R::Router(n), &[count, hidden], None, None);
        }
        if layer.mlp.kind != MlpKind::Plain {
            add(R::Gate(n), &[mlp, hidden], None, experts);
        }
        add(R::Up(n), &[mlp, hidden], None, experts);
        add(R::Down(n), &[hidden, mlp], None, experts);
        if layer.mlp.kind == MlpKind::Plain {
            add(R::UpBias(n), &[mlp], None, None);
            add(R::DownBias(n), &[hidden], None, None);
        }
    }
    all
}

/// Expert `index` of a mixture: a tensor of its own in safetensors files, a layer of a stack in GGUF files.
fn expert_binding(role: TensorRole, kind: FileKind, index: usize, count: usize, shape: &[usize]) -> TensorBinding {
    let name = tensor_name(role, kind);
    match kind {
        FileKind::HuggingFace => {
            TensorBinding::new(role, name.replace(".mlp.", &format!(".mlp.experts.{index}.")), shape)
        }
        FileKind::Gguf => {
            let name = name.replace(".weight", "_exps.weight");
            TensorBinding { part: Part::Layer { index, count }, ..TensorBinding::new(role, name, shape) }
        }
    }
}

/// The usual name of one tensor.
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
