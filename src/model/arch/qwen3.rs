//! Qwen3: Llama with a norm on each query and key head.

use super::names::FileKind;
use super::uniform::{self, UniformDecoder};
use super::{Architecture, Config, Metadata, ModelSpec, WeightSource};
use crate::error::Result;

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
        uniform::refuse_sliding_window(config)?;
        let mut decoder = UniformDecoder::from_config(self.family(), config, tensors, Some(DEFAULT_HEAD_DIM))?;
        decoder.qk_norm = true;
        decoder.qkv_bias = config.flag("attention_bias")?.unwrap_or(false);
        uniform::refuse_output_bias(tensors, FileKind::HuggingFace)?;
        decoder.build()
    }

    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let mut decoder = UniformDecoder::from_gguf(self.family(), metadata, tensors)?;
        decoder.qk_norm = true;
        decoder.qkv_bias = uniform::has_query_bias(tensors, FileKind::Gguf);
        uniform::refuse_output_bias(tensors, FileKind::Gguf)?;
        decoder.build()
    }
}
