//! OLMo 2: Llama with norms after attention and MLP instead of before, and with a norm over all queries and one over all keys.

use super::uniform::{Defaults, UniformDecoder};
use super::{Architecture, Config, Metadata, ModelSpec, WeightSource};
use crate::error::Result;
use crate::model::spec::QkNorm;

/// `Olmo2ForCausalLM`.
pub struct Olmo2;

impl Architecture for Olmo2 {
    fn family(&self) -> &'static str {
        "olmo2"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["Olmo2ForCausalLM"]
    }

    fn model_type(&self) -> &'static str {
        "olmo2"
    }

    fn spec_from_config(&self, config: &Config, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let defaults = Defaults { eps: 1e-5, ..Defaults::LLAMA };
        let decoder = UniformDecoder::from_config(self.family(), config, tensors, defaults)?;
        Ok(with_norms_after(decoder.build()?))
    }

    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let arch = self.gguf_name();
        let decoder = UniformDecoder::from_gguf(self.family(), arch, metadata, tensors)?;
        // OLMo 3 shares the name, but slides.
        Ok(with_norms_after(decoder.without_experts(arch, metadata)?.without_window()?.build()?))
    }
}

fn with_norms_after(mut spec: ModelSpec) -> ModelSpec {
    let norm = spec.final_norm;
    for layer in &mut spec.layers {
        (layer.attn_norm, layer.attn_post_norm) = (None, Some(norm));
        (layer.mlp_norm, layer.mlp_post_norm) = (None, Some(norm));
        layer.attn.qk_norm = Some(QkNorm { norm, whole_row: true });
    }
    spec
}
