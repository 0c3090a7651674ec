//! Decoders whose layers are all alike: what `config.json` and GGUF metadata of the Llama line have in common.

use super::super::config::Config;
use super::super::spec::{AttnSpec, LayerSpec, MlpSpec, ModelSpec, NormSpec, QkNorm, RopeSpec, TensorRole};
use super::names::{FileKind, tensor_name};
use super::rope_config::{rope_from_config, rope_from_gguf};
use crate::error::{Error, Result};
use crate::weights::gguf::Metadata;
use crate::weights::source::WeightSource;

/// Norm epsilon of the Llama and Qwen classes for configurations that do not say.
const DEFAULT_EPS: f64 = 1e-6;
/// Bounds on what a configuration may claim, far above any model, so that products of sizes cannot overflow and a
/// damaged file cannot ask for much memory.
const MAX_LAYERS: usize = 4096;
const MAX_WIDTH: usize = 1 << 28;
const MAX_HEADS: usize = 1 << 16;

/// The numbers that describe such a decoder.
pub struct UniformDecoder {
    pub family: &'static str,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub max_position_embeddings: usize,
    pub layer_count: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub intermediate_size: usize,
    pub eps: f64,
    pub qkv_bias: bool,
    pub qk_norm: bool,
    pub tied_head: bool,
    pub rope: RopeSpec,
}

impl UniformDecoder {
    /// Reads a `config.json`, without biases or query and key norms. `default_head_dim`: `None` divides the hidden size
    /// by the heads.
    ///
    /// # Errors
    /// Missing, contradictory or unsupported settings.
    pub fn from_config(
        family: &'static str,
        config: &Config,
        tensors: &dyn WeightSource,
        default_head_dim: Option<usize>,
    ) -> Result<Self> {
        if let Some(quantised) = config.object("quantization_config")? {
            let method = quantised.text("quant_method")?.unwrap_or("an unnamed method").to_owned();
            return Err(Error::load(format!(
                "the weights are quantised with {method}, which octavo does not read; use a GGUF file instead"
            )));
        }
        let activation = config.text("hidden_act")?.unwrap_or("silu");
        if activation != "silu" {
            return Err(Error::load(format!("hidden_act {activation} is not supported for {family}; supported: silu")));
        }
        let hidden_size = config.required_size("hidden_size")?;
        let heads = config.required_size("num_attention_heads")?;
        let head_dim = match config.size("head_dim")?.or(default_head_dim) {
            Some(head_dim) => head_dim,
            None => divided(hidden_size, heads)?,
        };
        let has_head = tensors.find(&tensor_name(TensorRole::Head, FileKind::HuggingFace)).is_some();
        Ok(Self {
            family,
            vocab_size: config.required_size("vocab_size")?,
            hidden_size,
            max_position_embeddings: config.required_size("max_position_embeddings")?,
            layer_count: config.required_size("num_hidden_layers")?,
            heads,
            kv_heads: config.size("num_key_value_heads")?.unwrap_or(heads),
            head_dim,
            intermediate_size: config.required_size("intermediate_size")?,
            eps: config.number("rms_norm_eps")?.unwrap_or(DEFAULT_EPS),
            qkv_bias: false,
            qk_norm: false,
            // These classes have a head of their own unless they say otherwise. Newer versions of transformers leave
            // the setting out when it is true, and then the files have no head either.
            tied_head: config.flag("tie_word_embeddings")?.unwrap_or(!has_head),
            rope: rope_from_config(config, head_dim)?,
        })
    }

    /// Reads GGUF metadata, without biases or query and key norms.
    ///
    /// # Errors
    /// Missing, contradictory or unsupported settings.
    pub fn from_gguf(family: &'static str, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<Self> {
        let size = |name: &str| -> Result<Option<usize>> {
            let value = metadata.unsigned(&format!("{family}.{name}"))?;
            Ok(value.map(|value| usize::try_from(value).unwrap_or(usize::MAX)))
        };
        let required =
            |name: &str| size(name)?.ok_or_else(|| Error::load(format!("GGUF metadata {family}.{name} is missing")));
        if let Some(experts @ 1..) = size("expert_count")? {
            return Err(Error::load(format!(
                "this {family} file has {experts} experts, which octavo does not support yet"
            )));
        }
        if let Some(window @ 1..) = size("attention.sliding_window")? {
            return Err(Error::load(format!(
                "this {family} file has a sliding attention window of {window}, which octavo does not support yet"
            )));
        }
        let hidden_size = required("embedding_length")?;
        let heads = required("attention.head_count")?;
        let head_dim = match size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None => divided(hidden_size, heads)?,
        };
        if let Some(value_dim) = size("attention.value_length")?.filter(|value_dim| *value_dim != head_dim) {
            return Err(Error::load(format!(
                "heads have keys of {head_dim} and values of {value_dim} elements, which octavo does not support yet"
            )));
        }
        let embed = tensor_name(TensorRole::Embed, FileKind::Gguf);
        let vocab_size = match tensors.find(&embed).map(|index| &tensors.tensors()[index].shape[..]) {
            Some(&[rows, _]) => rows,
            Some(shape) => return Err(Error::load(format!("tensor {embed} has shape {shape:?}, not two dimensions"))),
            None => return Err(Error::load(format!("tensor {embed} is missing from the model"))),
        };
        let eps = format!("{family}.attention.layer_norm_rms_epsilon");
        Ok(Self {
            family,
            vocab_size,
            hidden_size,
            max_position_embeddings: required("context_length")?,
            layer_count: required("block_count")?,
            heads,
            kv_heads: size("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            intermediate_size: required("feed_forward_length")?,
            eps: metadata.number(&eps)?.ok_or_else(|| Error::load(format!("GGUF metadata {eps} is missing")))?,
            qkv_bias: false,
            qk_norm: false,
            tied_head: tensors.find(&tensor_name(TensorRole::Head, FileKind::Gguf)).is_none(),
            rope: rope_from_gguf(metadata, family, head_dim, tensors)?,
        })
    }

    /// Checks the numbers against each other and spells out the layers.
    ///
    /// # Errors
    /// A number is out of range; the message says which.
    pub fn build(self) -> Result<ModelSpec> {
        let bounded = |name: &str, value: usize, limit: usize| match (1..=limit).contains(&value) {
            true => Ok(()),
            false => Err(Error::load(format!("the model's {name} is {value}, but must be between 1 and {limit}"))),
        };
        bounded("vocabulary size", self.vocab_size, MAX_WIDTH)?;
        bounded("hidden size", self.hidden_size, MAX_WIDTH)?;
        bounded("intermediate size", self.intermediate_size, MAX_WIDTH)?;
        bounded("number of layers", self.layer_count, MAX_LAYERS)?;
        bounded("number of attention heads", self.heads, MAX_HEADS)?;
        bounded("number of key-value heads", self.kv_heads, self.heads)?;
        bounded("head width", self.head_dim, MAX_HEADS)?;
        bounded("context length", self.max_position_embeddings, i32::MAX as usize)?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Error::load(format!("{} heads cannot share {} key-value heads", self.heads, self.kv_heads)));
        }
        let eps = self.eps as f32;
        if !(eps > 0.0 && eps < 1.0) {
            return Err(Error::load(format!("the norm epsilon is {}, but must be above 0 and below 1", self.eps)));
        }
        let norm = NormSpec::rms(eps);
        let attn = AttnSpec {
            qkv_bias: self.qkv_bias,
            qk_norm: self.qk_norm.then_some(QkNorm { norm, whole_row: false }),
            rope: Some(0),
            ..AttnSpec::plain(self.heads, self.kv_heads, self.head_dim)
        };
        let layer = LayerSpec::pre_norm(norm, attn, MlpSpec::silu_gated(self.intermediate_size));
        Ok(ModelSpec {
            family: self.family,
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            max_position_embeddings: self.max_position_embeddings,
            embed_scale: 1.0,
            learned_positions: false,
            layers: vec![layer; self.layer_count],
            final_norm: norm,
            tied_head: self.tied_head,
            final_softcap: None,
            ropes: vec![self.rope],
        })
    }
}

/// Whether the first layer has a bias on its queries.
pub fn has_query_bias(tensors: &dyn WeightSource, kind: FileKind) -> bool {
    tensors.find(&tensor_name(TensorRole::QueryBias(0), kind)).is_some()
}

/// Refuses a bias on the attention's output projection, which [`AttnSpec`] cannot express.
pub fn refuse_output_bias(tensors: &dyn WeightSource, kind: FileKind) -> Result<()> {
    let name = tensor_name(TensorRole::Output(0), kind).replace(".weight", ".bias");
    match tensors.find(&name) {
        None => Ok(()),
        Some(_) => Err(Error::load(format!("the model has a bias {name}, which octavo does not support yet"))),
    }
}

/// Refuses a window that is in use; Qwen configurations also carry the numbers of one that is not.
pub fn refuse_sliding_window(config: &Config) -> Result<()> {
    let kinds = config.texts("layer_types")?;
    if config.flag("use_sliding_window")? == Some(true) || kinds.iter().any(|kind| *kind != "full_attention") {
        return Err(Error::load(
            "use_sliding_window is true: some layers would see only the latest tokens, which octavo does not support yet",
        ));
    }
    Ok(())
}

fn divided(hidden_size: usize, heads: usize) -> Result<usize> {
    match hidden_size.checked_rem(heads) {
        Some(0) => Ok(hidden_size / heads),
        _ => Err(Error::load(format!("a hidden size of {hidden_size} cannot be divided among {heads} heads"))),
    }
}
