//! Qwen3: Llama with a norm on each query and key head.

use super::uniform::{Defaults, UniformDecoder};
use super::{Architecture, Config, Metadata, ModelSpec, WeightSource, windows};
use crate::error::Result;
use crate::model::spec::QkNorm;

/// `Qwen3ForCausalLM`.
pub struct Qwen3;

/// Head width of configurations that do not say; independent of the hidden size in this family.
const DEFAULT_HEAD_DIM: usize = 128;

impl Architecture for Qwen3 {
    fn family(&self) -> &'static str {
        "qwen3"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["Qwen3ForCausalLM"]
    }

    fn model_type(&self) -> &'static str {
        "qwen3"
    }

    fn spec_from_config(&self, config: &Config, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let defaults = Defaults { head_dim: Some(DEFAULT_HEAD_DIM), ..Defaults::LLAMA };
        let mut spec = UniformDecoder::from_config(self.family(), config, tensors, defaults)?.build()?;
        norm_heads(&mut spec);
        windows::apply_qwen(config, &mut spec)?;
        Ok(spec)
    }

    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let arch = self.gguf_name();
        let decoder = UniformDecoder::from_gguf(self.family(), arch, metadata, tensors)?;
        let mut spec = decoder.without_experts(arch, metadata)?.without_window()?.build()?;
        norm_heads(&mut spec);
        Ok(spec)
    }
}

/// Gives each query and key head a norm of the kind that the layers have.
pub fn norm_heads(spec: &mut ModelSpec) {
    let norm = spec.final_norm;
    for layer in &mut spec.layers {
        layer.attn.qk_norm = Some(QkNorm { norm, whole_row: false });
    }
}
