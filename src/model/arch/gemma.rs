//! Gemma 2 and Gemma 3 (text): norms before and after attention and MLP, a GELU gate, embeddings scaled by the root of the
//! hidden size, layers that slide and layers that see everything. Gemma 2 caps scores and logits; Gemma 3 norms query and
//! key heads instead and has a rotary embedding of its own for layers that slide.
//!
//! The scale of the embeddings is the exact root, as transformers computes in f32 and ggml always; transformers rounds it to
//! bf16 where the model computes in bf16.

use super::uniform::{Defaults, Keys, UniformDecoder};
use super::windows::{self, sliding_layers, sliding_window};
use super::{Architecture, Config, FileKind, Metadata, ModelSpec, WeightSource};
use crate::error::{Error, Result};
use crate::model::spec::{Activation, RopeScaling, RopeSpec, TensorRole};
use crate::weights::tensors::TensorBinding;

use super::qwen3::norm_heads;
use super::rope_config::{rope_of_layer_type, rope_with_default};

/// `Gemma2ForCausalLM`.
pub struct Gemma2;

/// `Gemma3ForCausalLM`.
pub struct Gemma3;

/// What both classes assume where configurations are silent.
const DEFAULTS: Defaults =
    Defaults { head_dim: Some(256), eps: 1e-6, theta: 10_000.0, activation: "gelu_pytorch_tanh" };
const DEFAULT_WINDOW: usize = 4096;
const DEFAULT_QUERY_SCALAR: f64 = 256.0;
/// Gemma 2's caps.
const DEFAULT_CAPS: [f64; 2] = [50.0, 30.0];
/// One of so many layers of Gemma 3 sees everything.
const DEFAULT_PATTERN: usize = 6;
/// Bases of Gemma 3's two rotary embeddings: of layers that see everything, and of those that slide.
const DEFAULT_THETAS: [f64; 2] = [1_000_000.0, 10_000.0];
/// Layers of the two models of 27 billion weights. Their queries are scaled by the hidden size per head, which GGUF files
/// do not say, so ggml tells them by these numbers too.
const LAYERS_OF_27B: [usize; 2] = [46, 62];

impl Architecture for Gemma2 {
    fn family(&self) -> &'static str {
        "gemma2"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["Gemma2ForCausalLM"]
    }

    fn model_type(&self) -> &'static str {
        "gemma2"
    }

    fn spec_from_config(&self, config: &Config, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let mut spec = UniformDecoder::from_config(self.family(), config, tensors, DEFAULTS)?.build()?;
        make_gemma(&mut spec, query_scalar(config)?)?;
        cap(
            &mut spec,
            cap_of(config, "attn_logit_softcapping", Some(DEFAULT_CAPS[0]))?,
            cap_of(config, "final_logit_softcapping", Some(DEFAULT_CAPS[1]))?,
        )?;
        let slides = sliding_layers(config, spec.layers.len(), |layer| layer % 2 == 0)?;
        windows::apply(&mut spec, &slides, window(config)?)?;
        Ok(spec)
    }

    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let keys = Keys { arch: self.gguf_name(), metadata };
        let (mut spec, window) = from_gguf(self.family(), &keys, tensors)?;
        cap(
            &mut spec,
            keys.number("attn_logit_softcapping")?.or(Some(DEFAULT_CAPS[0])),
            keys.number("final_logit_softcapping")?.or(Some(DEFAULT_CAPS[1])),
        )?;
        let slides: Vec<bool> = (0..spec.layers.len()).map(|layer| layer % 2 == 0).collect();
        windows::apply(&mut spec, &slides, window.or(Some(DEFAULT_WINDOW)))?;
        Ok(spec)
    }

    fn place(&self, usual: TensorBinding, _: &ModelSpec, kind: FileKind, _: &dyn WeightSource) -> TensorBinding {
        place(usual, kind)
    }
}

impl Architecture for Gemma3 {
    fn family(&self) -> &'static str {
        "gemma3"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["Gemma3ForCausalLM"]
    }

    fn model_type(&self) -> &'static str {
        "gemma3_text"
    }

    fn gguf_name(&self) -> &'static str {
        "gemma3"
    }

    fn spec_from_config(&self, config: &Config, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        if config.flag("use_bidirectional_attention")? == Some(true) {
            return Err(Error::load("use_bidirectional_attention is true: this model embeds texts, it does not write"));
        }
        let mut decoder = UniformDecoder::from_config(self.family(), &without_ropes(config), tensors, DEFAULTS)?;
        let (head_dim, [global_theta, local_theta]) = (decoder.head_dim, DEFAULT_THETAS);
        decoder.rope = match rope_of_layer_type(config, head_dim, "full_attention", global_theta)? {
            Some(rope) => Some(rope),
            None => Some(rope_with_default(config, head_dim, global_theta)?),
        };
        let local = match rope_of_layer_type(config, head_dim, "sliding_attention", local_theta)? {
            Some(rope) => rope,
            None => local_rope(head_dim, config.number("rope_local_base_freq")?.unwrap_or(local_theta))?,
        };
        let mut spec = decoder.build()?;
        make_gemma(&mut spec, query_scalar(config)?)?;
        norm_heads(&mut spec);
        cap(
            &mut spec,
            cap_of(config, "attn_logit_softcapping", None)?,
            cap_of(config, "final_logit_softcapping", None)?,
        )?;
        // Written with and without the underscore.
        let pattern = match config.size("sliding_window_pattern")? {
            Some(pattern) => pattern,
            None => config.size("_sliding_window_pattern")?.unwrap_or(DEFAULT_PATTERN),
        };
        let slides = sliding_layers(config, spec.layers.len(), |layer| slides(layer, pattern))?;
        windows::apply(&mut spec, &slides, window(config)?)?;
        rotate_locally(&mut spec, &slides, local);
        Ok(spec)
    }

    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec> {
        let keys = Keys { arch: self.gguf_name(), metadata };
        let (mut spec, window) = from_gguf(self.family(), &keys, tensors)?;
        norm_heads(&mut spec);
        cap(&mut spec, keys.number("attn_logit_softcapping")?, keys.number("final_logit_softcapping")?)?;
        let pattern = keys.name("attention.sliding_window_pattern");
        let count = spec.layers.len();
        let flags = match metadata.flags(&pattern)? {
            Some(flags) if flags.len() == count => flags,
            Some(flags) => {
                return Err(Error::load(format!("{pattern} has {} entries for {count} layers", flags.len())));
            }
            None => {
                let pattern = keys.size("attention.sliding_window_pattern")?.unwrap_or(DEFAULT_PATTERN);
                (0..count).map(|layer| slides(layer, pattern)).collect()
            }
        };
        // Without a window, ggml lets every layer see everything.
        let slides: Vec<bool> = flags.into_iter().map(|slides| slides && window.is_some()).collect();
        windows::apply(&mut spec, &slides, window)?;
        let theta = keys.number("rope.freq_base_swa")?.unwrap_or(DEFAULT_THETAS[1]);
        let local = local_rope(spec.layers[0].attn.head_dim, theta)?;
        rotate_locally(&mut spec, &slides, local);
        Ok(spec)
    }

    fn place(&self, usual: TensorBinding, _: &ModelSpec, kind: FileKind, _: &dyn WeightSource) -> TensorBinding {
        place(usual, kind)
    }
}

/// What both families have in common. `query_scalar`: queries are divided by its root.
fn make_gemma(spec: &mut ModelSpec, query_scalar: f64) -> Result<()> {
    if !(query_scalar.is_finite() && query_scalar > 0.0) {
        return Err(Error::load(format!("query_pre_attn_scalar is {query_scalar}, but must be above 0")));
    }
    spec.embed_scale = (spec.hidden_size as f64).sqrt() as f32;
    let norm = spec.final_norm;
    for layer in &mut spec.layers {
        layer.attn.scale = query_scalar.powf(-0.5) as f32;
        (layer.attn_post_norm, layer.mlp_post_norm) = (Some(norm), Some(norm));
    }
    Ok(())
}

/// The spec before caps, windows and local rotation, and the window that the file names.
fn from_gguf(family: &'static str, keys: &Keys<'_>, tensors: &dyn WeightSource) -> Result<(ModelSpec, Option<usize>)> {
    let decoder = UniformDecoder::from_gguf(family, keys.arch, keys.metadata, tensors)?;
    let mut decoder = decoder.without_experts(keys.arch, keys.metadata)?;
    decoder.activation = Activation::GeluTanh;
    let window = decoder.window.take();
    let mut spec = decoder.build()?;
    let attn = &spec.layers[0].attn;
    let query_scalar = match LAYERS_OF_27B.contains(&spec.layers.len()) {
        true => spec.hidden_size / attn.heads,
        false => attn.head_dim,
    };
    make_gemma(&mut spec, query_scalar as f64)?;
    Ok((spec, window))
}

fn query_scalar(config: &Config) -> Result<f64> {
    Ok(config.number("query_pre_attn_scalar")?.unwrap_or(DEFAULT_QUERY_SCALAR))
}

/// The window where null means none and silence the default.
fn window(config: &Config) -> Result<Option<usize>> {
    match config.mentions("sliding_window") {
        true => sliding_window(config),
        false => Ok(Some(DEFAULT_WINDOW)),
    }
}

fn cap_of(config: &Config, key: &str, default: Option<f64>) -> Result<Option<f64>> {
    if config.mentions(key) { config.number(key) } else { Ok(default) }
}

/// Sets both soft caps; 0 means none.
fn cap(spec: &mut ModelSpec, scores: Option<f64>, logits: Option<f64>) -> Result<()> {
    let checked = |name: &str, cap: Option<f64>| match cap {
        None | Some(0.0) => Ok(None),
        Some(cap) if cap.is_finite() && cap > 0.0 => Ok(Some(cap as f32)),
        Some(cap) => Err(Error::load(format!("{name} is {cap}, but must be above 0"))),
    };
    spec.final_softcap = checked("final_logit_softcapping", logits)?;
    let scores = checked("attn_logit_softcapping", scores)?;
    spec.layers.iter_mut().for_each(|layer| layer.attn.softcap = scores);
    Ok(())
}

/// Whether a layer slides where one of `pattern` layers does not.
fn slides(layer: usize, pattern: usize) -> bool {
    (layer + 1).checked_rem(pattern) != Some(0)
}

fn local_rope(head_dim: usize, theta: f64) -> Result<RopeSpec> {
    super::rope_config::checked(RopeSpec { theta, rotary_dim: head_dim, scaling: RopeScaling::Default }, head_dim)
}

fn rotate_locally(spec: &mut ModelSpec, slides: &[bool], local: RopeSpec) {
    spec.ropes.push(local);
    for (layer, _) in spec.layers.iter_mut().zip(slides).filter(|(_, slides)| **slides) {
        layer.attn.rope = Some(1);
    }
}

/// A configuration whose rotary embeddings are read by layer type.
fn without_ropes(config: &Config) -> Config {
    config.without(&["rope_parameters", "rope_scaling"])
}

/// The norm before the MLP has a name of its own in safetensors files, where all norms lack 1.
fn place(usual: TensorBinding, kind: FileKind) -> TensorBinding {
    use TensorRole::{AttnNorm, AttnPostNorm, FinalNorm, KeyNorm, MlpNorm, MlpPostNorm, QueryNorm};
    match (kind, usual.role) {
        (FileKind::Gguf, _) => usual,
        (FileKind::HuggingFace, MlpNorm(n)) => {
            usual.named(format!("model.layers.{n}.pre_feedforward_layernorm.weight")).plus_one()
        }
        (_, FinalNorm | AttnNorm(_) | AttnPostNorm(_) | MlpPostNorm(_) | QueryNorm(_) | KeyNorm(_)) => usual.plus_one(),
        _ => usual,
    }
}
