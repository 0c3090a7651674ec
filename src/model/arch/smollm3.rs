//! SmolLM3: Llama in which every fourth layer does not rotate queries and keys (Yang et al., "Rope to Nope", 2025).

use super::uniform::{Defaults, UniformDecoder};
use super::windows::{self, sliding_layers, sliding_window};
use super::{Architecture, Config, Metadata, ModelSpec, WeightSource};
use crate::error::{Error, Result};

/// `SmolLM3ForCausalLM`.
pub struct SmolLm3;

/// Every how manieth layer does not rotate where files do not say; ggml knows no other number.
const DEFAULT_INTERVAL: usize = 4;
/// Base of the rotary embedding where configurations do not say.
const DEFAULT_THETA: f64 = 2_000_000.0;

impl Architecture for SmolLm3 {
    fn family(&self) -> &'static str {
        "smollm3"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["SmolLM3ForCausalLM"]
    }

    fn model_type(&self) -> &'static str {
        "smollm3"
    }

    fn spec_from_config(&self, config: &Config, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let defaults = Defaults { theta: DEFAULT_THETA, ..Defaults::LLAMA };
        let mut spec = UniformDecoder::from_config(self.family(), config, tensors, defaults)?.build()?;
        let count = spec.layers.len();
        let rotates = match config.sizes("no_rope_layers")? {
            // Despite its name, a 1 in the list stands for a layer that rotates.
            Some(flags) if flags.len() == count => flags.into_iter().map(|flag| flag != 0).collect(),
            Some(flags) => {
                return Err(Error::load(format!("no_rope_layers has {} entries for {count} layers", flags.len())));
            }
            None => every_other(count, config.size("no_rope_layer_interval")?.unwrap_or(DEFAULT_INTERVAL)),
        };
        keep_rotation(&mut spec, &rotates);
        if config.flag("use_sliding_window")? == Some(true) {
            let window = sliding_window(config)?;
            // Where nothing else is said, the layers that slide are those that do not rotate.
            let slides = sliding_layers(config, count, |layer| window.is_some() && !rotates[layer])?;
            windows::apply(&mut spec, &slides, window)?;
        }
        Ok(spec)
    }

    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let arch = self.gguf_name();
        let decoder = UniformDecoder::from_gguf(self.family(), arch, metadata, tensors)?;
        let mut spec = decoder.without_experts(arch, metadata)?.without_window()?.build()?;
        let rotates = every_other(spec.layers.len(), DEFAULT_INTERVAL);
        keep_rotation(&mut spec, &rotates);
        Ok(spec)
    }

    fn gguf_interleaves_pairs(&self) -> bool {
        true
    }
}

fn every_other(layer_count: usize, interval: usize) -> Vec<bool> {
    (1..=layer_count).map(|number| number.checked_rem(interval) != Some(0)).collect()
}

fn keep_rotation(spec: &mut ModelSpec, rotates: &[bool]) {
    for (layer, &rotates) in spec.layers.iter_mut().zip(rotates) {
        layer.attn.rope = layer.attn.rope.filter(|_| rotates);
    }
}
