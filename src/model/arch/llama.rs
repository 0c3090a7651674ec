//! Llama 1 to 3 and everything that uses its class, such as SmolLM2.

use super::names::FileKind;
use super::uniform::{self, UniformDecoder};
use super::{Architecture, Config, Metadata, ModelSpec, WeightSource};
use crate::error::{Error, Result};

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
        if config.flag("mlp_bias")? == Some(true) {
            return Err(Error::load("mlp_bias is true, which octavo does not support for llama"));
        }
        let mut decoder = UniformDecoder::from_config(self.family(), config, tensors, None)?;
        decoder.qkv_bias = config.flag("attention_bias")?.unwrap_or(false);
        uniform::refuse_output_bias(tensors, FileKind::HuggingFace)?;
        decoder.build()
    }

    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let mut decoder = UniformDecoder::from_gguf(self.family(), metadata, tensors)?;
        decoder.qkv_bias = uniform::has_query_bias(tensors, FileKind::Gguf);
        uniform::refuse_output_bias(tensors, FileKind::Gguf)?;
        decoder.build()
    }

    fn gguf_interleaves_pairs(&self) -> bool {
        true
    }
}
