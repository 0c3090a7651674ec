//! Qwen2 and Qwen2.5: Llama with biases on queries, keys and values.

use super::uniform::{Defaults, UniformDecoder};
use super::{Architecture, Config, Metadata, ModelSpec, WeightSource, windows};
use crate::error::Result;

/// `Qwen2ForCausalLM`.
pub struct Qwen2;

impl Architecture for Qwen2 {
    fn family(&self) -> &'static str {
        "qwen2"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["Qwen2ForCausalLM"]
    }

    fn model_type(&self) -> &'static str {
        "qwen2"
    }

    fn spec_from_config(&self, config: &Config, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let mut decoder = UniformDecoder::from_config(self.family(), config, tensors, Defaults::LLAMA)?;
        decoder.qkv_bias = true;
        let mut spec = decoder.build()?;
        windows::apply_qwen(config, &mut spec)?;
        Ok(spec)
    }

    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let arch = self.gguf_name();
        let mut decoder = UniformDecoder::from_gguf(self.family(), arch, metadata, tensors)?
            .without_experts(arch, metadata)?
            .without_window()?;
        decoder.qkv_bias = true;
        decoder.build()
    }
}
