//! What a model is made of, as data. Architectures translate their configuration into this; kernels and the
//! reference walk it. Later families add fields here, not branches elsewhere.

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Family name for people, such as `llama`.
    pub family: &'static str,
    /// Rows of the embedding and of the output head; may exceed what the tokenizer knows.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Longest context the model was made for.
    pub max_position_embeddings: usize,
    /// Factor on embedded tokens; 1 in most families.
    pub embed_scale: f32,
    /// Whether a table of `max_position_embeddings` learned vectors is added to the embedded tokens.
    pub learned_positions: bool,
    /// Decoder layers in order.
    pub layers: Vec<LayerSpec>,
    /// Norm before the output head.
    pub final_norm: NormSpec,
    /// Whether the output head is the embedding matrix.
    pub tied_head: bool,
    /// Soft limit of the logits: `cap * tanh(logit / cap)`.
    pub final_softcap: Option<f32>,
    /// Rotary tables that layers refer to by index.
    pub ropes: Vec<RopeSpec>,
}

/// One decoder layer: `h += post_norm(attention(norm(h))); h += post_norm(mlp(norm(h)))`. A norm that is `None` does
/// nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Norm before attention.
    pub attn_norm: Option<NormSpec>,
    /// Attention.
    pub attn: AttnSpec,
    /// Norm of the attention's output, before it is added.
    pub attn_post_norm: Option<NormSpec>,
    /// Norm before the MLP.
    pub mlp_norm: Option<NormSpec>,
    /// MLP.
    pub mlp: MlpSpec,
    /// Norm of the MLP's output, before it is added.
    pub mlp_post_norm: Option<NormSpec>,
}

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttnSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Factor on query-key products, usually `head_dim^-1/2`.
    pub scale: f32,
    /// Bias on the query, key and value projections.
    pub qkv_bias: bool,
    /// Bias on the output projection.
    pub output_bias: bool,
    /// Norm of queries and keys before rotation.
    pub qk_norm: Option<QkNorm>,
    /// Which of [`ModelSpec::ropes`] rotates queries and keys; `None` leaves them as they are.
    pub rope: Option<usize>,
    /// Position i sees the keys of positions j with `i - j < window` only.
    pub window: Option<usize>,
    /// Soft limit of the scaled query-key products: `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
}

/// Norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// The norm; root mean square, without bias.
    pub norm: NormSpec,
    /// Whether all heads are normed as one row (OLMo 2) or each by itself (Qwen 3, Gemma 3).
    pub whole_row: bool,
}

/// What follows the attention.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// Width between the projections; of one expert where there are experts.
    pub intermediate_size: usize,
    /// Function between the projections.
    pub activation: Activation,
    /// Shape.
    pub kind: MlpKind,
}

/// Shape of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpKind {
    /// `down(activation(gate(x)) * up(x))`.
    Gated,
    /// `down(activation(up(x) + bias)) + bias`.
    Plain,
    /// A mixture of gated experts: the router's softmax picks `chosen` of `count` for each token, ties by lower index, and
    /// their outputs are added with its probabilities as weights, in the order of the experts.
    Experts {
        /// All experts.
        count: usize,
        /// Experts that compute a token.
        chosen: usize,
        /// Whether the weights of the chosen are scaled to a sum of 1.
        normalize: bool,
    },
}

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))` (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016).
    GeluTanh,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Self; 2] = [Self::Silu, Self::GeluTanh];
}

/// A norm over a row of the residual stream or of a head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// What is computed.
    pub kind: NormKind,
    /// Added to the mean square or the variance.
    pub eps: f32,
}

/// Kinds of norms. Families whose files hold `weight - 1` are corrected when their tensors are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// Root mean square: `x * weight / sqrt(mean(x^2) + eps)`.
    Rms,
    /// `(x - mean(x)) * weight / sqrt(variance(x) + eps) + bias`.
    Layer,
}

impl ModelSpec {
    /// The most latest tokens, its own included, that a token sees in any layer, if every layer has a window: keys and
    /// values before them are never read again.
    pub fn longest_window(&self) -> Option<usize> {
        let windows: Option<Vec<usize>> = self.layers.iter().map(|layer| layer.attn.window).collect();
        windows?.into_iter().max()
    }
}

impl NormSpec {
    /// A root-mean-square norm.
    pub const fn rms(eps: f32) -> Self {
        Self { kind: NormKind::Rms, eps }
    }
}

impl LayerSpec {
    /// Pre-norm attention and MLP, as in Llama.
    pub fn pre_norm(norm: NormSpec, attn: AttnSpec, mlp: MlpSpec) -> Self {
        Self { attn_norm: Some(norm), attn, attn_post_norm: None, mlp_norm: Some(norm), mlp, mlp_post_norm: None }
    }
}

impl MlpSpec {
    /// A SiLU-gated MLP, as in Llama.
    pub const fn silu_gated(intermediate_size: usize) -> Self {
        Self { intermediate_size, activation: Activation::Silu, kind: MlpKind::Gated }
    }
}

/// Rotary position embedding in rotate-half form: element i of a head pairs with i + rotary_dim / 2.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub theta: f64,
    /// Leading elements of a head that rotate.
    pub rotary_dim: usize,
    /// How frequencies are stretched for longer contexts.
    pub scaling: RopeScaling,
}

/// Context extension of rotary embeddings, with the names of Hugging Face's `rope_type`. Where frequencies depend on the
/// length of the context, it is the engine's longest one that counts, so that no token depends on how long its sequence gets.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// None.
    Default,
    /// All frequencies divided by `factor`.
    Linear {
        /// Stretch.
        factor: f64,
    },
    /// Llama 3: low frequencies stretched, high ones kept, a smooth ramp between.
    Llama3 {
        /// Stretch of the lowest frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are stretched fully.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context before stretching.
        original_context: usize,
    },
    /// Linear up to `original_context`; beyond it, the base grows with the length of the context ("NTK-aware").
    Dynamic {
        /// Stretch.
        factor: f64,
        /// Context before stretching.
        original_context: usize,
    },
    /// Low frequencies stretched, high ones kept, a ramp between, and longer queries and keys (Peng et al., "YaRN", 2023).
    Yarn {
        /// Stretch of the lowest frequencies.
        factor: f64,
        /// Context before stretching.
        original_context: usize,
        /// Turns within the original context from which on a frequency is kept.
        beta_fast: f64,
        /// Turns up to which a frequency is stretched fully.
        beta_slow: f64,
        /// Whether the ends of the ramp are rounded outwards to whole pairs.
        truncate: bool,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
    /// Each frequency divided by a factor of its own, of two sets: for contexts up to the original one and for longer
    /// ones (Ding et al., "LongRoPE", 2024).
    LongRope {
        /// `rotary_dim / 2` divisors for short contexts.
        short: Vec<f32>,
        /// `rotary_dim / 2` divisors for long contexts.
        long: Vec<f32>,
        /// Longest context that is short.
        original_context: usize,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
    /// Each frequency divided by a factor of its own, as GGUF files give them.
    Factors {
        /// `rotary_dim / 2` divisors.
        factors: Vec<f32>,
    },
}

impl AttnSpec {
    /// Attention without biases, norms, rotation, window or cap, scaled by `head_dim^-1/2`.
    pub fn plain(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f64).powf(-0.5) as f32,
            qkv_bias: false,
            output_bias: false,
            qk_norm: None,
            rope: None,
            window: None,
            softcap: None,
        }
    }

    /// Width of all query heads together.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Query heads that share one key and value head.
    pub fn group_size(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// Which tensor of a model. Layer tensors carry the layer's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum TensorRole {
    Embed,
    Head,
    FinalNorm,
    AttnNorm(usize),
    Query(usize),
    Key(usize),
    Value(usize),
    QueryBias(usize),
    KeyBias(usize),
    ValueBias(usize),
    QueryNorm(usize),
    KeyNorm(usize),
    Output(usize),
    OutputBias(usize),
    AttnPostNorm(usize),
    MlpNorm(usize),
    /// Of a mixture: the scores of the experts, `[count, hidden]`.
    Router(usize),
    /// Of a mixture, `Gate`, `Up` and `Down` hold the experts one after another: `[count * rows, columns]`.
    Gate(usize),
    Up(usize),
    UpBias(usize),
    Down(usize),
    DownBias(usize),
    MlpPostNorm(usize),
    Positions,
    /// Bias of the norm that the named weight belongs to.
    FinalNormBias,
    AttnNormBias(usize),
    MlpNormBias(usize),
}
