//! RMSNorm or LayerNorm over rows. Twin: `reference/norm.rs`.

use super::Form;
use crate::gpu::{Const, Profile, Variant};
use crate::model::spec::NormKind;
use bytemuck::{Pod, Zeroable};

/// Uniform parameters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct NormParams {
    /// Width of a row in vectors of four.
    pub width: u32,
    /// Added to the mean square or the variance.
    pub eps: f32,
    /// First sample, if rows are gathered.
    pub first_sample: u32,
    /// Room.
    pub reserved: u32,
}

/// Which rows are normed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// All rows of the step, each in its place.
    All,
    /// Those whose logits are wanted, one after another.
    Wanted,
}

/// The variant for a kind of norm that leaves its rows in `form`.
pub fn variant(kind: NormKind, rows: Rows, form: Form, profile: &Profile) -> Variant {
    let lanes = profile.row_lanes(64);
    let norm = match kind {
        NormKind::Rms => "rms",
        NormKind::Layer => "layer",
    };
    Variant {
        kernel: "norm",
        slots: vec![("reduce", profile.reduce_slot(lanes)), ("norm", norm), ("rows_out", form.slot())],
        consts: vec![("GATHER", Const::Bool(rows == Rows::Wanted))],
        workgroup: [lanes, 1, 1],
    }
}

/// One workgroup a row.
pub fn grid(rows: usize) -> [u32; 3] {
    [rows as u32, 1, 1]
}

/// Both kinds, both ways to find a row, and both forms.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    let mut variants = Vec::new();
    for kind in [NormKind::Rms, NormKind::Layer] {
        for rows in [Rows::All, Rows::Wanted] {
            variants.extend([Form::F32, Form::Int12].map(|form| variant(kind, rows, form, profile)));
        }
    }
    variants
}
