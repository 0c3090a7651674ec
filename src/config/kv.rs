//! How keys and values are stored, and what that takes.
//!
//! MEASURED, mean negative log-likelihood of 1,087 tokens (`tests/golden/smollm2/perplexity.json`) with SmolLM2-135M-Instruct in
//! Q4_1: with activations in f32 3.29631 with f16 and 3.29699 with q8_0, which is 0.02 % more; with those of twelve bits 3.29618 and
//! 3.29571, which is as much less.

use crate::error::{Error, Result};
use crate::model::spec::{AttnSpec, ModelSpec};

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KvDtype {
    /// Half precision: half the memory, and what most engines use.
    #[default]
    F16,
    /// Single precision.
    F32,
    /// Signed bytes with an f16 scale for each 32 elements of a head: half of half the memory, and a little of the
    /// model's certainty. A block is rounded by itself, so that no entry depends on what else is stored.
    Q8_0,
}

/// Elements of a head that share a scale in [`KvDtype::Q8_0`].
const Q8_BLOCK: usize = 32;

impl KvDtype {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F16, Self::F32, Self::Q8_0];

    /// Bytes of the keys, or of the values, of one head at one position. Scales of 8-bit blocks come in pairs, so that no word
    /// belongs to two heads.
    pub const fn head_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F16 => 2 * head_dim,
            Self::F32 => 4 * head_dim,
            Self::Q8_0 => head_dim + 4 * head_dim.div_ceil(2 * Q8_BLOCK),
        }
    }

    /// Bytes of the keys, or of the values, of one position in a layer.
    pub const fn row_bytes(self, attn: &AttnSpec) -> usize {
        attn.kv_heads * self.head_bytes(attn.head_dim)
    }

    /// Lower-case name; also the name of the WGSL slot file `shaders/slots/kv/<name>.wgsl`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Whether heads of this width can be stored so.
    pub const fn holds(self, head_dim: usize) -> bool {
        match self {
            Self::F16 | Self::F32 => true,
            Self::Q8_0 => head_dim.is_multiple_of(Q8_BLOCK),
        }
    }

    /// Checks that the heads of a model can be stored so.
    ///
    /// # Errors
    /// They are no whole blocks.
    pub fn check(self, spec: &ModelSpec) -> Result<()> {
        match spec.layers.iter().position(|layer| !self.holds(layer.attn.head_dim)) {
            None => Ok(()),
            Some(layer) => Err(Error::config(format!(
                "kv_dtype is {self}, which needs heads of a multiple of {Q8_BLOCK} elements, but those of layer {layer} have {}; \
                 choose f16",
                spec.layers[layer].attn.head_dim
            ))),
        }
    }
}

impl std::fmt::Display for KvDtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for KvDtype {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|dtype| dtype.name() == text);
        known.ok_or_else(|| Error::config(format!("kv_dtype is `{text}`, but must be f16, f32 or q8_0")))
    }
}

/// Bytes of one token's keys and values in all layers.
pub fn kv_bytes_per_token(spec: &ModelSpec, kv_dtype: KvDtype) -> u64 {
    spec.layers.iter().map(|layer| 2 * kv_dtype.row_bytes(&layer.attn) as u64).sum()
}
