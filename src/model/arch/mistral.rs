//! Mistral: Llama whose layers may all slide. GGUF files call it llama.

use super::llama::Llama;
use super::uniform::{Defaults, UniformDecoder};
use super::windows::sliding_window;
use super::{Architecture, Config, Metadata, ModelSpec, WeightSource};
use crate::error::Result;

/// Window of configurations that do not mention one.
const DEFAULT_WINDOW: usize = 4096;

/// `MistralForCausalLM`.
pub struct Mistral;

impl Architecture for Mistral {
    fn family(&self) -> &'static str {
        "mistral"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["MistralForCausalLM"]
    }

    fn model_type(&self) -> &'static str {
        "mistral"
    }

    fn gguf_name(&self) -> &'static str {
        Llama.gguf_name()
    }

    fn spec_from_config(&self, config: &Config, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let mut decoder = UniformDecoder::from_config(self.family(), config, tensors, Defaults::LLAMA)?;
        // As in transformers, a file that is silent means the first Mistral, and null means none.
        decoder.window = match config.mentions("sliding_window") {
            true => sliding_window(config)?,
            false => Some(DEFAULT_WINDOW),
        };
        decoder.build()
    }

    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        Llama.spec_from_gguf(metadata, tensors)
    }

    fn gguf_interleaves_pairs(&self) -> bool {
        Llama.gguf_interleaves_pairs()
    }
}
