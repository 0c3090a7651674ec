//! Llama 1 to 3 and everything that uses its class, such as SmolLM2; in GGUF files Mistral too.

use super::uniform::{Defaults, UniformDecoder};
use super::{Architecture, Config, Metadata, ModelSpec, WeightSource};
use crate::error::Result;

/// `LlamaForCausalLM`.
pub struct Llama;

impl Architecture for Llama {
    fn family(&self) -> &'static str {
        "llama"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["LlamaForCausalLM"]
    }

    fn model_type(&self) -> &'static str {
        "llama"
    }

    fn spec_from_config(&self, config: &Config, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        UniformDecoder::from_config(self.family(), config, tensors, Defaults::LLAMA)?.build()
    }

    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let arch = self.gguf_name();
        UniformDecoder::from_gguf(self.family(), arch, metadata, tensors)?.without_experts(arch, metadata)?.build()
    }

    fn gguf_interleaves_pairs(&self) -> bool {
        true
    }
}
