//! Query, key and value heads straight from the product of their projections: rotated, and keys and values written to the cache,
//! without a dispatch of their own. Twins: `reference/matmul.rs`, then `reference/rope_kv.rs`.
//!
//! The rows of the matrix are [arranged](crate::weights::pack::Arrangement::Heads) so that a lane owns both elements of each pair
//! that rotates. Heads that are normalised first or are no whole groups of rows, biases, formats that need a binding more, and the
//! eight-bit cache go through [`rope_kv`].

use super::{KvDtype, rope_kv};
use crate::base::DType;
use crate::gpu::Const;

/// Fixed when the model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head; a multiple of 32.
    pub head_dim: usize,
    /// Leading elements that rotate; a multiple of 32.
    pub rotary_dim: usize,
    /// Storage of keys and values.
    pub kv: KvDtype,
}

impl Heads {
    /// The heads of a layer whose projections are one matrix of `dtype`, if a product can write them: heads in whole groups of
    /// rows, no norms, a cache whose elements are stored by themselves, and no more than seven storage bindings.
    pub fn new(spec: &rope_kv::Spec, dtype: DType) -> Option<Self> {
        let rope_kv::Spec { heads, kv_heads, head_dim, rotary_dim, head_norm, kv } = *spec;
        let has_bits = matches!(dtype, DType::Q5_0 | DType::Q5_1 | DType::Q3_K | DType::Q5_K | DType::Q6_K);
        let alone = matches!(kv, KvDtype::F16 | KvDtype::F32);
        let whole = head_dim.is_multiple_of(32) && rotary_dim.is_multiple_of(32);
        (whole && alone && !has_bits && head_norm.is_none()).then_some(Self {
            heads,
            kv_heads,
            head_dim,
            rotary_dim,
            kv,
        })
    }

    /// Heads that rotate.
    pub fn rotated(&self) -> usize {
        if self.rotary_dim > 0 { self.heads + self.kv_heads } else { 0 }
    }

    pub(super) fn consts(&self) -> [(&'static str, Const); 4] {
        [
            ("HEADS", Const::U32(self.heads as u32)),
            ("KV_HEADS", Const::U32(self.kv_heads as u32)),
            ("HEAD_DIM", Const::U32(self.head_dim as u32)),
            ("ROTARY_DIM", Const::U32(self.rotary_dim as u32)),
        ]
    }
}
