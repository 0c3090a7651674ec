//! Decoders whose layers are all alike: what `config.json` and GGUF metadata of the Llama line have in common. Families
//! start from this and change the spec that [`UniformDecoder::build`] gives.

use super::super::config::Config;
use super::super::rope::longest_context;
use super::super::spec::{
    Activation, AttnSpec, LayerSpec, MlpKind, MlpSpec, ModelSpec, NormKind, NormSpec, RopeSpec, TensorRole,
};
use super::names::{FileKind, tensor_name};
use super::rope_config::rope_with_default;
use super::rope_gguf::rope_from_gguf;
use crate::error::{Error, Result};
use crate::weights::gguf::Metadata;
use crate::weights::source::WeightSource;

/// Bounds on what a configuration may claim, far above any model, so that products of sizes cannot overflow and a
/// damaged file cannot ask for much memory.
const MAX_LAYERS: usize = 4096;
pub const MAX_WIDTH: usize = 1 << 28;
const MAX_HEADS: usize = 1 << 16;
/// Experts of all layers together.
const MAX_EXPERTS: usize = 1 << 16;

/// What a class of transformers assumes where `config.json` is silent.
#[derive(Clone, Copy)]
pub struct Defaults {
    /// Width of a head; `None` divides the hidden size by the heads.
    pub head_dim: Option<usize>,
    /// Epsilon of the norms.
    pub eps: f64,
    /// Base of the rotary embedding.
    pub theta: f64,
    /// Activation of the MLP.
    pub activation: &'static str,
}

impl Defaults {
    /// Those of the Llama class, and of most others.
    pub const LLAMA: Self = Self { head_dim: None, eps: 1e-6, theta: 10_000.0, activation: "silu" };
}

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
    pub activation: Activation,
    pub mlp: MlpKind,
    pub norm: NormKind,
    pub eps: f64,
    pub qkv_bias: bool,
    pub output_bias: bool,
    /// Window of all layers.
    pub window: Option<usize>,
    pub tied_head: bool,
    /// `None` where nothing rotates.
    pub rope: Option<RopeSpec>,
}

impl UniformDecoder {
    /// Reads a `config.json`: a gated MLP, root-mean-square norms, biases as `attention_bias` says, no window.
    ///
    /// # Errors
    /// Missing, contradictory or unsupported settings.
    pub fn from_config(
        family: &'static str,
        config: &Config,
        tensors: &dyn WeightSource,
        defaults: Defaults,
    ) -> Result<Self> {
        refuse_quantised(config)?;
        if config.flag("mlp_bias")? == Some(true) {
            return Err(Error::load(format!("mlp_bias is true, which octavo does not support for {family}")));
        }
        let hidden_size = config.required_size("hidden_size")?;
        let heads = config.required_size("num_attention_heads")?;
        let head_dim = match config.size("head_dim")?.or(defaults.head_dim) {
            Some(head_dim) => head_dim,
            None => divided(hidden_size, heads)?,
        };
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
            activation: activation(config, &["hidden_activation", "hidden_act"], defaults.activation)?,
            mlp: MlpKind::Gated,
            norm: NormKind::Rms,
            eps: config.number("rms_norm_eps")?.unwrap_or(defaults.eps),
            qkv_bias: config.flag("attention_bias")?.unwrap_or(false),
            output_bias: has(tensors, TensorRole::OutputBias(0), FileKind::HuggingFace),
            window: None,
            tied_head: tied_head(config, tensors)?,
            rope: Some(rope_with_default(config, head_dim, defaults.theta)?),
        })
    }

    /// Reads GGUF metadata under the prefix `arch`: a gated SiLU MLP, root-mean-square norms, biases as the tensors say,
    /// the window that the file names.
    ///
    /// # Errors
    /// Missing, contradictory or unsupported settings.
    pub fn from_gguf(
        family: &'static str,
        arch: &str,
        metadata: Metadata<'_>,
        tensors: &dyn WeightSource,
    ) -> Result<Self> {
        refuse_mlp_biases(family, tensors)?;
        let keys = Keys { arch, metadata };
        let hidden_size = keys.required("embedding_length")?;
        let heads = keys.required("attention.head_count")?;
        let head_dim = match keys.size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None => divided(hidden_size, heads)?,
        };
        if let Some(value_dim) = keys.size("attention.value_length")?.filter(|value_dim| *value_dim != head_dim) {
            return Err(Error::load(format!(
                "heads have keys of {head_dim} and values of {value_dim} elements, which octavo does not support yet"
            )));
        }
        let rope = rope_from_gguf(&keys, head_dim, tensors)?;
        Ok(Self {
            family,
            vocab_size: gguf_vocab_size(tensors)?,
            hidden_size,
            max_position_embeddings: keys.required("context_length")?,
            layer_count: keys.required("block_count")?,
            heads,
            kv_heads: keys.size("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            intermediate_size: keys.required("feed_forward_length")?,
            activation: Activation::Silu,
            mlp: MlpKind::Gated,
            norm: NormKind::Rms,
            eps: keys.required_number("attention.layer_norm_rms_epsilon")?,
            qkv_bias: has(tensors, TensorRole::QueryBias(0), FileKind::Gguf),
            output_bias: has(tensors, TensorRole::OutputBias(0), FileKind::Gguf),
            window: keys.size("attention.sliding_window")?.filter(|&window| window > 0),
            tied_head: !has(tensors, TensorRole::Head, FileKind::Gguf),
            rope: Some(rope),
        })
    }

    /// Checks the numbers against each other and spells out the layers.
    ///
    /// # Errors
    /// A number is out of range; the message says which.
    pub fn build(self) -> Result<ModelSpec> {
        let context = match &self.rope {
            Some(rope) => longest_context(rope, self.max_position_embeddings),
            None => self.max_position_embeddings,
        };
        bounded("vocabulary size", self.vocab_size, MAX_WIDTH)?;
        bounded("hidden size", self.hidden_size, MAX_WIDTH)?;
        bounded("intermediate size", self.intermediate_size, MAX_WIDTH)?;
        bounded("number of layers", self.layer_count, MAX_LAYERS)?;
        bounded("number of attention heads", self.heads, MAX_HEADS)?;
        bounded("number of key-value heads", self.kv_heads, self.heads)?;
        bounded("head width", self.head_dim, MAX_HEADS)?;
        bounded("context length", context, i32::MAX as usize)?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Error::load(format!("{} heads cannot share {} key-value heads", self.heads, self.kv_heads)));
        }
        if let MlpKind::Experts { count, chosen, .. } = self.mlp {
            bounded("number of experts in all layers", count.saturating_mul(self.layer_count), MAX_EXPERTS)?;
            bounded("number of experts that compute a token", chosen, count)?;
        }
        let eps = self.eps as f32;
        if !(eps > 0.0 && eps < 1.0) {
            return Err(Error::load(format!("the norm epsilon is {}, but must be above 0 and below 1", self.eps)));
        }
        let norm = NormSpec { kind: self.norm, eps };
        let attn = AttnSpec {
            qkv_bias: self.qkv_bias,
            output_bias: self.output_bias,
            rope: self.rope.is_some().then_some(0),
            window: self.window,
            ..AttnSpec::plain(self.heads, self.kv_heads, self.head_dim)
        };
        let mlp = MlpSpec { intermediate_size: self.intermediate_size, activation: self.activation, kind: self.mlp };
        let layer = LayerSpec::pre_norm(norm, attn, mlp);
        Ok(ModelSpec {
            family: self.family,
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            max_position_embeddings: context,
            embed_scale: 1.0,
            learned_positions: false,
            layers: vec![layer; self.layer_count],
            final_norm: norm,
            tied_head: self.tied_head,
            final_softcap: None,
            ropes: self.rope.into_iter().collect(),
        })
    }

    /// Refuses a window, for families whose layers have none.
    ///
    /// # Errors
    /// There is one.
    pub fn without_window(self) -> Result<Self> {
        match self.window {
            None => Ok(self),
            Some(window) => Err(Error::load(format!(
                "this {} file has a sliding attention window of {window}, which octavo does not support for this family",
                self.family
            ))),
        }
    }

    /// Refuses experts that GGUF metadata announces, for families without them.
    ///
    /// # Errors
    /// There are some.
    pub fn without_experts(self, arch: &str, metadata: Metadata<'_>) -> Result<Self> {
        match (Keys { arch, metadata }).size("expert_count")? {
            None | Some(0) => Ok(self),
            Some(experts) => Err(Error::load(format!(
                "this {} file has {experts} experts, which octavo does not support for this family",
                self.family
            ))),
        }
    }
}

/// The keys of one architecture in GGUF metadata.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    /// Prefix of all of them.
    pub arch: &'a str,
    /// Where they are.
    pub metadata: Metadata<'a>,
}

impl Keys<'_> {
    /// The whole name of a key.
    pub fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    /// A count or size.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        let value = self.metadata.unsigned(&self.name(key))?;
        Ok(value.map(|value| usize::try_from(value).unwrap_or(usize::MAX)))
    }

    /// A number.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.metadata.number(&self.name(key))
    }

    /// A count or size that must be there.
    pub fn required(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| Error::load(format!("GGUF metadata {} is missing", self.name(key))))
    }

    /// A number that must be there.
    pub fn required_number(&self, key: &str) -> Result<f64> {
        self.number(key)?.ok_or_else(|| Error::load(format!("GGUF metadata {} is missing", self.name(key))))
    }
}

/// Rows of the embedding of a GGUF file, whose metadata do not always say.
pub fn gguf_vocab_size(tensors: &dyn WeightSource) -> Result<usize> {
    let embed = tensor_name(TensorRole::Embed, FileKind::Gguf);
    match tensors.find(&embed).map(|index| &tensors.tensors()[index].shape[..]) {
        Some(&[rows, _]) => Ok(rows),
        Some(shape) => Err(Error::load(format!("tensor {embed} has shape {shape:?}, not two dimensions"))),
        None => Err(Error::load(format!("tensor {embed} is missing from the model"))),
    }
}

/// Whether the files have the tensor under its usual name.
pub fn has(tensors: &dyn WeightSource, role: TensorRole, kind: FileKind) -> bool {
    tensors.find(&tensor_name(role, kind)).is_some()
}

/// Whether the embedding is the head too.
pub fn tied_head(config: &Config, tensors: &dyn WeightSource) -> Result<bool> {
    // Classes differ in what they assume, and newer versions of transformers leave the setting out when it is true, but
    // then the files have no head either.
    let has_head = has(tensors, TensorRole::Head, FileKind::HuggingFace);
    Ok(config.flag("tie_word_embeddings")?.unwrap_or(!has_head))
}

/// The function that the first of `keys` in the configuration names.
pub fn activation(config: &Config, keys: &[&str], default: &str) -> Result<Activation> {
    let key = keys.iter().find(|key| config.value(key).is_some()).unwrap_or(&keys[0]);
    match config.text(key)?.unwrap_or(default) {
        "silu" | "swish" => Ok(Activation::Silu),
        // Three names of one formula in transformers.
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
        other => {
            Err(Error::load(format!("{key} {other} is not supported; supported: silu, gelu_new, gelu_pytorch_tanh")))
        }
    }
}

/// Refuses weights in a format that safetensors files have for quantised ones.
pub fn refuse_quantised(config: &Config) -> Result<()> {
    let Some(quantised) = config.object("quantization_config")? else { return Ok(()) };
    let method = quantised.text("quant_method")?.unwrap_or("an unnamed method");
    Err(Error::load(format!(
        "the weights are quantised with {method}, which octavo does not read; use a GGUF file instead"
    )))
}

/// Checks that a size is at least 1 and at most `limit`.
pub fn bounded(name: &str, value: usize, limit: usize) -> Result<()> {
    match (1..=limit).contains(&value) {
        true => Ok(()),
        false => Err(Error::load(format!("the model's {name} is {value}, but must be between 1 and {limit}"))),
    }
}

/// The width of a head where files do not say it.
pub fn divided(hidden_size: usize, heads: usize) -> Result<usize> {
    match hidden_size.checked_rem(heads) {
        Some(0) => Ok(hidden_size / heads),
        _ => Err(Error::load(format!("a hidden size of {hidden_size} cannot be divided among {heads} heads"))),
    }
}

/// Refuses biases of a gated MLP in a GGUF file: some models that call themselves llama have them.
fn refuse_mlp_biases(family: &str, tensors: &dyn WeightSource) -> Result<()> {
    let ends = [".ffn_gate.bias", ".ffn_up.bias", ".ffn_down.bias"];
    match tensors.tensors().iter().find(|tensor| ends.iter().any(|end| tensor.name.ends_with(end))) {
        None => Ok(()),
        Some(tensor) => {
            Err(Error::load(format!("the model has {}, which octavo does not support for {family}", tensor.name)))
        }
    }
}
