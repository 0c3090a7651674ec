//! How keys and values are stored, and what that takes.

use crate::error::{Error, Result};
use crate::model::spec::ModelSpec;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KvDtype {
    /// Half precision: half the memory, and what most engines use.
    #[default]
    F16,
    /// Single precision.
    F32,
}

impl KvDtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Lower-case name; also the name of the WGSL slot file `shaders/slots/kv/<name>.wgsl`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
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
        match text {
            "f16" => Ok(Self::F16),
            "f32" => Ok(Self::F32),
            _ => Err(Error::config(format!("kv_dtype is `{text}`, but must be f16 or f32"))),
        }
    }
}

/// Bytes of one token's keys and values in all layers.
pub fn kv_bytes_per_token(spec: &ModelSpec, kv_dtype: KvDtype) -> u64 {
    let elements: usize = spec.layers.iter().map(|layer| 2 * layer.attn.kv_width()).sum();
    (elements * kv_dtype.bytes()) as u64
}
