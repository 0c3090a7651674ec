//! The forms in which products read activations, and the dispatch that makes the one that nobody left.

use super::forward::Recording;
use super::load::Loader;
use crate::error::Result;
use crate::gpu::memory::Slice;
use crate::kernels::Form;
use crate::kernels::quantize::{self, QuantizeParams};

/// Where products find the rows that they read, in each form that one of them wants.
#[derive(Clone, Copy)]
pub(super) struct Forms<'a> {
    pub(super) f32: &'a Slice,
    pub(super) int12: &'a Slice,
}

impl<'a> Forms<'a> {
    /// Rows of which products want one form only.
    pub(super) fn only(rows: &'a Slice) -> Self {
        Self { f32: rows, int12: rows }
    }

    /// The rows in one form.
    pub(super) fn of(&self, form: Form) -> &'a Slice {
        match form {
            Form::F32 => self.f32,
            Form::Int12 => self.int12,
        }
    }
}

/// What the products that read the same rows want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All the same form.
    One(Form),
    /// Files of mixed precision want both.
    Both,
}

impl Wanted {
    /// What products of these forms want.
    pub(super) fn of(forms: impl IntoIterator<Item = Form>) -> Self {
        let mut forms = forms.into_iter();
        let first = forms.next().unwrap_or(Form::F32);
        if forms.all(|form| form == first) { Self::One(first) } else { Self::Both }
    }

    /// The form that whoever makes the rows leaves them in.
    pub(super) fn left(self) -> Form {
        match self {
            Self::One(form) => form,
            Self::Both => Form::F32,
        }
    }
}

/// Rounds rows of one width to int12.
pub(super) struct Quantizer {
    blocks: usize,
    rows_per_token: usize,
    params: Slice,
}

impl Quantizer {
    /// For rows of `width` columns, `rows_per_token` of them for each token.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn new(loader: &mut Loader<'_>, width: usize, rows_per_token: usize) -> Result<Self> {
        let blocks = width / 32;
        let params = QuantizeParams { blocks: blocks as u32, rows_per_token: rows_per_token as u32, reserved: [0; 2] };
        Ok(Self { blocks, rows_per_token, params: loader.params(bytemuck::bytes_of(&params))? })
    }

    /// Records the rounding of `x`, and returns where it goes.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record<'a>(&self, step: &mut Recording<'a>, x: &Slice) -> Result<&'a Slice> {
        let b = step.buffers;
        let profile = &step.gpu.profile;
        let arguments = [("inputs", &b.inputs), ("x", x), ("result", &b.quantized), ("params", &self.params)];
        let grid = quantize::grid(self.blocks, step.rows * self.rows_per_token, profile);
        step.dispatch("quantize", &quantize::variant(profile), &arguments, grid)?;
        Ok(&b.quantized)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_one_form_want_that_and_others_both() {
        assert_eq!(Wanted::of([Form::Int12, Form::Int12]), Wanted::One(Form::Int12));
        assert_eq!(Wanted::of([]), Wanted::One(Form::F32));
        let mixed = Wanted::of([Form::Int12, Form::F32]);
        assert_eq!((mixed, mixed.left()), (Wanted::Both, Form::F32));
    }
}
