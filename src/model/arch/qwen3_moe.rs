//! Qwen3-MoE: Qwen3 with a mixture of experts in most layers, or in all.

use super::qwen3::norm_heads;
use super::uniform::{Defaults, Keys, MAX_WIDTH, UniformDecoder, bounded, has};
use super::{Architecture, Config, FileKind, Metadata, ModelSpec, WeightSource, windows};
use crate::error::Result;
use crate::model::spec::{MlpKind, MlpSpec, TensorRole};

/// `Qwen3MoeForCausalLM`.
pub struct Qwen3Moe;

impl Architecture for Qwen3Moe {
    fn family(&self) -> &'static str {
        "qwen3_moe"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["Qwen3MoeForCausalLM"]
    }

    fn model_type(&self) -> &'static str {
        "qwen3_moe"
    }

    fn gguf_name(&self) -> &'static str {
        "qwen3moe"
    }

    fn spec_from_config(&self, config: &Config, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let mut decoder = UniformDecoder::from_config(self.family(), config, tensors, Defaults::LLAMA)?;
        let dense_size = decoder.intermediate_size;
        decoder.intermediate_size = config.required_size("moe_intermediate_size")?;
        let count = config.required_size("num_experts")?;
        decoder.mlp = MlpKind::Experts {
            count,
            chosen: config.required_size("num_experts_per_tok")?,
            normalize: config.flag("norm_topk_prob")?.unwrap_or(false),
        };
        let mut spec = decoder.build()?;
        norm_heads(&mut spec);
        let dense = config.sizes("mlp_only_layers")?.unwrap_or_default();
        let step = config.size("decoder_sparse_step")?.unwrap_or(1);
        let is_dense = |layer: usize| dense.contains(&layer) || (layer + 1).checked_rem(step) != Some(0);
        make_dense(&mut spec, dense_size, is_dense)?;
        windows::apply_qwen(config, &mut spec)?;
        Ok(spec)
    }

    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let keys = Keys { arch: self.gguf_name(), metadata };
        let mut decoder = UniformDecoder::from_gguf(self.family(), keys.arch, metadata, tensors)?.without_window()?;
        let dense_size = decoder.intermediate_size;
        decoder.intermediate_size = keys.required("expert_feed_forward_length")?;
        decoder.mlp = MlpKind::Experts {
            count: keys.required("expert_count")?,
            chosen: keys.required("expert_used_count")?,
            // Newer files may say; ggml always normalises.
            normalize: metadata.flag(&keys.name("expert_weights_norm"))?.unwrap_or(true),
        };
        let mut spec = decoder.build()?;
        norm_heads(&mut spec);
        make_dense(&mut spec, dense_size, |layer| !has(tensors, TensorRole::Router(layer), FileKind::Gguf))?;
        Ok(spec)
    }
}

/// Replaces the mixture by a plain gated MLP in the layers that `dense` names.
fn make_dense(spec: &mut ModelSpec, intermediate_size: usize, dense: impl Fn(usize) -> bool) -> Result<()> {
    for (_, layer) in spec.layers.iter_mut().enumerate().filter(|(index, _)| dense(*index)) {
        bounded("intermediate size", intermediate_size, MAX_WIDTH)?;
        layer.mlp = MlpSpec { intermediate_size, kind: MlpKind::Gated, ..layer.mlp };
    }
    Ok(())
}
