//! Merges the chunk partials of decode rows, in chunk order.

use super::Form;
use super::attention::{Spec, window};
use crate::gpu::{Const, Profile, Variant};
use crate::model::spec::AttnSpec;
use bytemuck::{Pod, Zeroable};

/// Uniform parameters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct CombineParams {
    /// Chunks that the partial buffer has room for, per row and head.
    pub chunk_stride: u32,
    /// Room.
    pub reserved: [u32; 3],
}

/// The variant for a layer, which leaves its rows in `form`.
pub fn variant(spec: &Spec, form: Form, profile: &Profile) -> Variant {
    Variant {
        kernel: "attn_combine",
        slots: vec![("rows_out", form.slot())],
        consts: vec![
            ("HEADS", Const::U32(spec.heads as u32)),
            ("HEAD_DIM", Const::U32(spec.head_dim as u32)),
            window(spec),
        ],
        workgroup: [profile.row_lanes(32), 1, 1],
    }
}

/// One workgroup a row and head.
pub fn grid(spec: &Spec, rows: usize) -> [u32; 3] {
    [rows as u32, spec.heads as u32, 1]
}

/// Bytes of the partial results of `rows` rows in `chunks` chunks.
pub fn partial_bytes(spec: &Spec, rows: usize, chunks: usize) -> u64 {
    (rows * spec.heads * chunks * (spec.head_dim / 4 + 1) * 16) as u64
}

/// One shape is as good as another here; with and without a window.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    let spec = Spec::new(&AttnSpec::plain(9, 3, 64), super::KvDtype::F16);
    let windowed = Spec { window: Some(700), ..spec };
    vec![
        variant(&spec, Form::F32, profile),
        variant(&windowed, Form::F32, profile),
        variant(&spec, Form::Int12, profile),
    ]
}
