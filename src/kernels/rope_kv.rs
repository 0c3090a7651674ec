//! Head norms, rotation and the KV write, in one dispatch after the projections. Twin: `reference/rope_kv.rs`.

use super::KvDtype;
use crate::gpu::{Const, Profile, Variant};
use crate::model::spec::{AttnSpec, RopeSpec};

/// Fixed when the model is loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head; a multiple of eight, and of 32 in q8_0.
    pub head_dim: usize,
    /// Leading elements that rotate; even, 0 where heads do not rotate.
    pub rotary_dim: usize,
    /// Epsilon of the norms of single heads, where there are any.
    pub head_norm: Option<f32>,
    /// Storage of keys and values.
    pub kv: KvDtype,
}

impl Spec {
    /// The spec of a layer. Norms of whole rows are the work of `qk_norm`.
    pub fn new(attn: &AttnSpec, rope: Option<&RopeSpec>, kv: KvDtype) -> Self {
        Self {
            heads: attn.heads,
            kv_heads: attn.kv_heads,
            head_dim: attn.head_dim,
            rotary_dim: rope.map_or(0, |rope| rope.rotary_dim),
            head_norm: attn.qk_norm.filter(|norm| !norm.whole_row).map(|norm| norm.norm.eps),
            kv,
        }
    }
}

/// The variant for a layer.
pub fn variant(spec: &Spec, profile: &Profile) -> Variant {
    let lanes = profile.row_lanes(32);
    let mut slots = vec![("rope", if spec.rotary_dim > 0 { "rotate" } else { "none" })];
    match spec.kv {
        KvDtype::Q8_0 => slots.push(("kv_store", "q8_0")),
        KvDtype::F16 | KvDtype::F32 => slots.extend([("kv_store", "pairs"), ("kv_pair", spec.kv.name())]),
    }
    match spec.head_norm {
        Some(_) => slots.extend([("qk_norm", "rms"), ("reduce", profile.reduce_slot(lanes))]),
        None => slots.push(("qk_norm", "none")),
    }
    let mut consts = vec![
        ("HEADS", Const::U32(spec.heads as u32)),
        ("KV_HEADS", Const::U32(spec.kv_heads as u32)),
        ("HEAD_DIM", Const::U32(spec.head_dim as u32)),
        ("ROTARY_DIM", Const::U32(spec.rotary_dim as u32)),
    ];
    if let Some(eps) = spec.head_norm {
        consts.push(("EPS", Const::f32(eps)));
    }
    Variant { kernel: "rope_kv", slots, consts, workgroup: [lanes, 1, 1] }
}

/// One workgroup a head and row.
pub fn grid(spec: &Spec, rows: usize) -> [u32; 3] {
    [(spec.heads + 2 * spec.kv_heads) as u32, rows as u32, 1]
}

/// With and without head norms; whole, partial and no rotation; every storage.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    let mut variants = Vec::new();
    for kv in KvDtype::ALL {
        for (heads, kv_heads, head_dim, rotary_dim, head_norm) in [
            (9, 3, 64, 64, None),
            (16, 8, 128, 128, Some(1e-6)),
            (4, 2, 32, 24, None),
            (4, 1, 256, 256, Some(1e-6)),
            (5, 5, 16, 6, None),
            (12, 12, 64, 0, None),
        ] {
            if !kv.holds(head_dim) {
                continue;
            }
            variants.push(variant(&Spec { heads, kv_heads, head_dim, rotary_dim, head_norm, kv }, profile));
        }
    }
    variants
}
