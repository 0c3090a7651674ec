//! RMSNorm of a sublayer's output, added to the residual stream, and at once the norm in front of the next sublayer: a family with
//! norms before and after takes no more dispatches than one with norms before. Twin: `reference/norm.rs`.

use super::Form;
use crate::gpu::{Profile, Variant};
use bytemuck::{Pod, Zeroable};

/// Uniform parameters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct NormAddParams {
    /// Width of a row in vectors of four.
    pub width: u32,
    /// Added to the mean square of the output.
    pub eps: f32,
    /// Added to the mean square of the sum, for the next norm.
    pub next_eps: f32,
    /// Room.
    pub reserved: u32,
}

/// Whether the next sublayer reads its norm of the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// It reads the sum itself, or there is none.
    None,
    /// It reads the sum's RMSNorm, in this form.
    Rms(Form),
}

/// The variant with or without a norm that follows.
pub fn variant(next: Next, profile: &Profile) -> Variant {
    let lanes = profile.row_lanes(64);
    let mut slots = vec![("reduce", profile.reduce_slot(lanes))];
    match next {
        Next::None => slots.push(("next_norm", "none")),
        Next::Rms(form) => slots.extend([("next_norm", "rms"), ("rows_out", form.slot())]),
    }
    Variant { kernel: "norm_add", slots, consts: vec![], workgroup: [lanes, 1, 1] }
}

/// One workgroup a row.
pub fn grid(rows: usize) -> [u32; 3] {
    [rows as u32, 1, 1]
}

/// With and without a norm that follows.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    [Next::None, Next::Rms(Form::F32), Next::Rms(Form::Int12)].map(|next| variant(next, profile)).to_vec()
}
