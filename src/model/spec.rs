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
    /// Decoder layers in order.
    pub layers: Vec<LayerSpec>,
    /// Norm before the output head.
    pub final_norm: NormSpec,
    /// Whether the output head is the embedding matrix.
    pub tied_head: bool,
    /// Rotary tables that layers refer to by index.
    pub ropes: Vec<RopeSpec>,
}

/// One decoder layer: `h += attention(norm(h)); h += mlp(norm(h))`.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Norm before attention.
    pub attn_norm: NormSpec,
    /// Attention.
    pub attn: AttnSpec,
    /// Norm before the MLP.
    pub mlp_norm: NormSpec,
    /// MLP.
    pub mlp: MlpSpec,
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
    /// Norm of each query and key head before rotation.
    pub qk_norm: Option<NormSpec>,
    /// Which of [`ModelSpec::ropes`] rotates queries and keys.
    pub rope: usize,
}

/// Gated MLP: `down(silu(gate(x)) * up(x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// Width between the projections.
    pub intermediate_size: usize,
}

/// Root-mean-square norm: `x * weight / sqrt(mean(x^2) + eps)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Added to the mean square.
    pub eps: f32,
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

/// Context extension of rotary embeddings, with the names of Hugging Face's `rope_type`.
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
    /// Each frequency divided by a factor of its own, as GGUF files give them.
    Factors {
        /// `rotary_dim / 2` divisors.
        factors: Vec<f32>,
    },
}

impl AttnSpec {
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
    MlpNorm(usize),
    Gate(usize),
    Up(usize),
    Down(usize),
}
