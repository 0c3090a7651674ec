//! Phi-3 and Phi-4 mini: Llama whose query, key and value projections are one tensor, as are gate and up, and which may
//! rotate a part of each head and slide.

use super::uniform::{Defaults, UniformDecoder};
use super::windows::sliding_window;
use super::{Architecture, Config, FileKind, Metadata, ModelSpec, WeightSource};
use crate::error::Result;
use crate::model::spec::TensorRole;
use crate::weights::tensors::TensorBinding;

/// `Phi3ForCausalLM`.
pub struct Phi3;

impl Architecture for Phi3 {
    fn family(&self) -> &'static str {
        "phi3"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["Phi3ForCausalLM"]
    }

    fn model_type(&self) -> &'static str {
        "phi3"
    }

    fn spec_from_config(&self, config: &Config, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let defaults = Defaults { eps: 1e-5, ..Defaults::LLAMA };
        let mut decoder = UniformDecoder::from_config(self.family(), config, tensors, defaults)?;
        decoder.window = sliding_window(config)?;
        decoder.build()
    }

    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let arch = self.gguf_name();
        UniformDecoder::from_gguf(self.family(), arch, metadata, tensors)?.without_experts(arch, metadata)?.build()
    }

    fn place(&self, usual: TensorBinding, spec: &ModelSpec, kind: FileKind, _: &dyn WeightSource) -> TensorBinding {
        let name = |layer: usize, hugging_face: &str, gguf: &str| match kind {
            FileKind::HuggingFace => format!("model.layers.{layer}.{hugging_face}.weight"),
            FileKind::Gguf => format!("blk.{layer}.{gguf}.weight"),
        };
        let qkv = |usual: TensorBinding, layer: usize, start: fn(usize, usize) -> usize| {
            let attn = &spec.layers[layer].attn;
            let (query, kv) = (attn.query_width(), attn.kv_width());
            usual.rows_of(name(layer, "self_attn.qkv_proj", "attn_qkv"), start(query, kv), query + 2 * kv)
        };
        let gate_up = |usual: TensorBinding, layer: usize, part: usize| {
            let width = spec.layers[layer].mlp.intermediate_size;
            usual.rows_of(name(layer, "mlp.gate_up_proj", "ffn_up"), part * width, 2 * width)
        };
        match usual.role {
            TensorRole::Query(layer) => qkv(usual, layer, |_, _| 0),
            TensorRole::Key(layer) => qkv(usual, layer, |query, _| query),
            TensorRole::Value(layer) => qkv(usual, layer, |query, kv| query + kv),
            TensorRole::Gate(layer) => gate_up(usual, layer, 0),
            TensorRole::Up(layer) => gate_up(usual, layer, 1),
            _ => usual,
        }
    }
}
