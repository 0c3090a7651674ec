//! GPT-2: learned positions instead of rotation, layer norms with biases, biases everywhere, a plain MLP, and matrices that
//! safetensors files keep transposed, with query, key and value in one.

use super::names::tensor_name;
use super::uniform::{Keys, UniformDecoder, activation, divided, gguf_vocab_size, has, refuse_quantised};
use super::{Architecture, Config, FileKind, Metadata, ModelSpec, WeightSource};
use crate::error::{Error, Result};
use crate::model::spec::{Activation, MlpKind, NormKind, TensorRole};
use crate::weights::tensors::TensorBinding;

/// `GPT2LMHeadModel`.
pub struct Gpt2;

/// Epsilon of configurations that do not say.
const DEFAULT_EPS: f64 = 1e-5;
/// What the transformers class puts before every name; files of the original repositories lack it.
const PREFIX: &str = "transformer.";

impl Architecture for Gpt2 {
    fn family(&self) -> &'static str {
        "gpt2"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["GPT2LMHeadModel"]
    }

    fn model_type(&self) -> &'static str {
        "gpt2"
    }

    fn spec_from_config(&self, config: &Config, _: &dyn WeightSource) -> Result<ModelSpec> {
        refuse_quantised(config)?;
        if config.flag("add_cross_attention")? == Some(true) {
            return Err(Error::load("add_cross_attention is true, which octavo does not support for gpt2"));
        }
        let hidden_size = config.required_size("n_embd")?;
        let heads = config.required_size("n_head")?;
        let numbers = Numbers {
            vocab_size: config.required_size("vocab_size")?,
            hidden_size,
            positions: config.required_size("n_positions")?,
            layer_count: config.required_size("n_layer")?,
            heads,
            intermediate_size: config.size("n_inner")?.unwrap_or(hidden_size.saturating_mul(4)),
            eps: config.number("layer_norm_epsilon")?.unwrap_or(DEFAULT_EPS),
        };
        let activation = activation(config, &["activation_function"], "gelu_new")?;
        let mut spec = numbers.build(activation, config.flag("tie_word_embeddings")?.unwrap_or(true))?;
        for (index, layer) in spec.layers.iter_mut().enumerate() {
            if config.flag("scale_attn_weights")? == Some(false) {
                layer.attn.scale = 1.0;
            }
            if config.flag("scale_attn_by_inverse_layer_idx")? == Some(true) {
                layer.attn.scale /= (index + 1) as f32;
            }
        }
        Ok(spec)
    }

    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let keys = Keys { arch: self.gguf_name(), metadata };
        let numbers = Numbers {
            vocab_size: gguf_vocab_size(tensors)?,
            hidden_size: keys.required("embedding_length")?,
            positions: keys.required("context_length")?,
            layer_count: keys.required("block_count")?,
            heads: keys.required("attention.head_count")?,
            intermediate_size: keys.required("feed_forward_length")?,
            eps: keys.required_number("attention.layer_norm_epsilon")?,
        };
        numbers.build(Activation::GeluTanh, !has(tensors, TensorRole::Head, FileKind::Gguf))
    }

    fn place(&self, usual: TensorBinding, spec: &ModelSpec, kind: FileKind, files: &dyn WeightSource) -> TensorBinding {
        let hidden = spec.hidden_size;
        // Query, key or value; weight or bias; layer.
        let fused = match usual.role {
            TensorRole::Query(n) => Some((0, "weight", n)),
            TensorRole::Key(n) => Some((1, "weight", n)),
            TensorRole::Value(n) => Some((2, "weight", n)),
            TensorRole::QueryBias(n) => Some((0, "bias", n)),
            TensorRole::KeyBias(n) => Some((1, "bias", n)),
            TensorRole::ValueBias(n) => Some((2, "bias", n)),
            _ => None,
        };
        if kind == FileKind::Gguf {
            return match fused {
                Some((part, end, n)) => usual.rows_of(format!("blk.{n}.attn_qkv.{end}"), part * hidden, 3 * hidden),
                None => usual,
            };
        }
        let prefix = if files.find("transformer.wte.weight").is_some() { PREFIX } else { "" };
        if let Some((part, end, n)) = fused {
            let name = format!("{prefix}h.{n}.attn.c_attn.{end}");
            return match end {
                "weight" => usual.transposed_columns_of(name, part * hidden, 3 * hidden),
                _ => usual.rows_of(name, part * hidden, 3 * hidden),
            };
        }
        let layer = |usual: TensorBinding, n: usize, name: &str| usual.named(format!("{prefix}h.{n}.{name}"));
        let transposed = |usual: TensorBinding, n: usize, name: &str| {
            let rows = usual.shape[0];
            usual.transposed_columns_of(format!("{prefix}h.{n}.{name}"), 0, rows)
        };
        match usual.role {
            TensorRole::Embed => usual.named(format!("{prefix}wte.weight")),
            TensorRole::Positions => usual.named(format!("{prefix}wpe.weight")),
            TensorRole::FinalNorm => usual.named(format!("{prefix}ln_f.weight")),
            TensorRole::FinalNormBias => usual.named(format!("{prefix}ln_f.bias")),
            TensorRole::AttnNorm(n) => layer(usual, n, "ln_1.weight"),
            TensorRole::AttnNormBias(n) => layer(usual, n, "ln_1.bias"),
            TensorRole::MlpNorm(n) => layer(usual, n, "ln_2.weight"),
            TensorRole::MlpNormBias(n) => layer(usual, n, "ln_2.bias"),
            TensorRole::Output(n) => transposed(usual, n, "attn.c_proj.weight"),
            TensorRole::OutputBias(n) => layer(usual, n, "attn.c_proj.bias"),
            TensorRole::Up(n) => transposed(usual, n, "mlp.c_fc.weight"),
            TensorRole::UpBias(n) => layer(usual, n, "mlp.c_fc.bias"),
            TensorRole::Down(n) => transposed(usual, n, "mlp.c_proj.weight"),
            TensorRole::DownBias(n) => layer(usual, n, "mlp.c_proj.bias"),
            role => usual.named(tensor_name(role, kind)),
        }
    }
}

/// What both kinds of files say.
struct Numbers {
    vocab_size: usize,
    hidden_size: usize,
    positions: usize,
    layer_count: usize,
    heads: usize,
    intermediate_size: usize,
    eps: f64,
}

impl Numbers {
    fn build(self, activation: Activation, tied_head: bool) -> Result<ModelSpec> {
        let decoder = UniformDecoder {
            family: Gpt2.family(),
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            max_position_embeddings: self.positions,
            layer_count: self.layer_count,
            heads: self.heads,
            kv_heads: self.heads,
            head_dim: divided(self.hidden_size, self.heads)?,
            intermediate_size: self.intermediate_size,
            activation,
            mlp: MlpKind::Plain,
            norm: NormKind::Layer,
            eps: self.eps,
            qkv_bias: true,
            output_bias: true,
            window: None,
            tied_head,
            rope: None,
        };
        Ok(ModelSpec { learned_positions: true, ..decoder.build()? })
    }
}
