//! Every kernel against its f64 twin on cases made up here, on whatever device there is. `octavo doctor` runs the small
//! closed list of [`run`]; `tests/kernels.rs` runs the same cases over many more shapes and compares bits.
//!
//! A case uploads its inputs, runs its dispatches twice through the same [`Recorder`](crate::gpu::Recorder) as the
//! engine, demands equal bits of both runs and untouched memory around every output, and measures the result against the
//! bound of [`tolerance`](crate::reference::tolerance). This is the one place below `kernels` that knows slots and
//! tokens, because a sampler cannot be tried without them.

pub mod attention;
pub mod cache;
pub mod data;
pub mod experts;
pub mod heads;
pub mod int12;
pub mod matrix;
pub mod norms;
pub mod rig;
pub mod rows;
pub mod sampler;
pub mod tables;

use super::embed::Table;
use super::heads::Heads;
use super::matmul::{Batch, Epilogue};
use super::norm::Rows;
use super::norm_add::Next;
use super::{Form, KvDtype, attention as attention_kernel, matmul, rope_kv};
use crate::base::DType;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::model::spec::{Activation, NormKind};
use data::Spread;
use rig::Rig;

/// What a case found: bits of all outputs, and how much of its bound the worst element used (0 for exact results).
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Words of all outputs, one after another.
    pub bits: Vec<u32>,
    /// At most 1.
    pub worst_share: f64,
}

/// The outcome of a case: what it found, or in words what is wrong.
pub type Outcome = std::result::Result<Found, String>;

/// A kernel's verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// The case in a few words.
    pub case: String,
    /// Largest share of its error bound that any element used, or what is wrong.
    pub outcome: std::result::Result<f64, String>,
}

/// Runs every kernel on small cases.
///
/// # Errors
/// The device failed; a wrong result is a verdict, not an error.
pub fn run(gpu: &Gpu) -> Result<Vec<Verdict>> {
    let rig = &Rig::new(gpu);
    let mut verdicts = Vec::new();
    let mut note = |kernel, case: String, outcome: Outcome| {
        verdicts.push(Verdict { kernel, case, outcome: outcome.map(|found| found.worst_share) });
    };
    for dtype in DType::ALL {
        let shape = matrix::Shape { tokens: 3, rows: 45, blocks: 4, shards: 2 };
        for form in forms(dtype) {
            let spec = matmul::Spec { dtype, form, normed: false, epilogue: Epilogue::Store, batch: Batch::Rows };
            for tile in [1, 4] {
                let outcome = matrix::matmul(rig, &spec, tile, &shape, Spread::Heavy);
                note("matmul", format!("{dtype}, {form:?}, tile of {tile}"), outcome);
            }
        }
        note("embed", dtype.to_string(), matrix::embed(rig, dtype, Table::Tokens, &shape, Spread::Plain));
    }
    let shape = matrix::Shape { tokens: 9, rows: 32, blocks: 2, shards: 1 };
    for epilogue in Epilogue::ALL {
        for form in [Form::F32, Form::Int12] {
            let normed = form == Form::Int12;
            let spec = matmul::Spec { dtype: DType::Q8_0, form, normed, epilogue, batch: Batch::Rows };
            let outcome = matrix::matmul(rig, &spec, 8, &shape, Spread::Plain);
            note("matmul", format!("q8_0, {form:?}, {epilogue:?}"), outcome);
        }
    }
    note("matmul", "soft limit".into(), matrix::soft_cap(rig));
    note("embed", "positions".into(), matrix::embed(rig, DType::F16, Table::Positions, &shape, Spread::Plain));
    for kind in [NormKind::Rms, NormKind::Layer] {
        for rows in [Rows::All, Rows::Wanted] {
            for form in [Form::F32, Form::Int12] {
                let outcome = norms::norm(rig, kind, [5, 192], (rows, form), Spread::Heavy);
                note("norm", format!("{kind:?}, {rows:?}, {form:?}"), outcome);
            }
        }
    }
    for next in [Next::None, Next::Rms(Form::F32), Next::Rms(Form::Int12)] {
        note("norm_add", format!("next {next:?}"), norms::norm_add(rig, next, 5, 192, Spread::Heavy));
    }
    note("quantize", "rows of heavy numbers".into(), int12::quantize(rig, 3, 5, Spread::Heavy));
    note("qk_norm", "whole rows".into(), norms::qk_norm(rig, 5, 128, 64, Spread::Heavy));
    for activation in Activation::ALL {
        note("act_mul", format!("{activation:?} up to 1e4"), rows::act_mul(rig, activation, 3, 96));
    }
    mixture(rig, &mut note);
    for (kv, head_norm, rotary_dim) in [
        (KvDtype::F16, None, 24),
        (KvDtype::F32, Some(1e-6), 32),
        (KvDtype::F16, None, 0),
        (KvDtype::Q8_0, Some(1e-6), 24),
    ] {
        let spec = rope_kv::Spec { heads: 4, kv_heads: 2, head_dim: 32, rotary_dim, head_norm, kv };
        let name = if head_norm.is_some() { "head norms, " } else { "" };
        note("rope_kv", format!("{name}{rotary_dim} of 32, {}", kv.name()), rows::rope_kv(rig, &spec, 5));
    }
    for (dtype, form) in [(DType::F16, Form::F32), (DType::Q4_1, Form::Int12)] {
        let spec = Heads { heads: 4, kv_heads: 2, head_dim: 64, rotary_dim: 32, kv: KvDtype::F16 };
        let outcome = heads::heads(rig, dtype, form, spec, 4, 6);
        note("matmul", format!("{dtype}, {form:?}, heads"), outcome);
    }
    for (kv, window, softcap) in
        [(KvDtype::F16, None, None), (KvDtype::F32, Some(24), Some(2.0)), (KvDtype::Q8_0, None, None)]
    {
        let spec = attention_kernel::Spec { heads: 6, kv_heads: 2, head_dim: 32, scale: 0.2, window, softcap, kv };
        let name = if window.is_some() { "window, cap, " } else { "" };
        for mode in [attention::Path::Prefill, attention::Path::Decode, attention::Path::Split] {
            for form in [Form::F32, Form::Int12] {
                let outcome = attention::attend(rig, &spec, (mode, form), &[300, 17], 7);
                note(mode.kernel(), format!("{mode:?}, {name}{}, {form:?}", kv.name()), outcome);
            }
        }
    }
    for case in sampler::cases::doctor_cases() {
        note("sample", case.name.clone(), sampler::sample(rig, &case));
    }
    note("resolve", "decode and prompt rows".into(), tables::resolve(rig));
    note("update", "slots and tables".into(), tables::update(rig));
    if gpu.profile.matrix.is_some() {
        let outcome = super::matmul_units::check(gpu).map_err(|error| error.to_string());
        let found = |()| Found { bits: Vec::new(), worst_share: 0.0 };
        note("matmul_units", "as register tiles".into(), outcome.map(found));
    }
    for mode in super::peak::Mode::ALL {
        note("peak", format!("{mode:?}"), tables::peak(rig, mode));
    }
    gpu.check()?;
    Ok(verdicts)
}

/// How products with weights of this type take activations.
pub fn forms(dtype: DType) -> Vec<Form> {
    if dtype.has_whole_codes() { vec![Form::F32, Form::Int12] } else { vec![Form::F32] }
}

/// The kernels of a mixture of experts.
fn mixture(rig: &Rig<'_>, note: &mut impl FnMut(&'static str, String, Outcome)) {
    let spec = super::experts::Spec { count: 8, chosen: 3, normalize: true };
    for (kernel, tile) in [("route_experts", 1), ("group_experts", 4)] {
        note(kernel, format!("3 of 8, tiles of {tile}"), experts::route(rig, &spec, 7, tile));
        let shape = experts::Shape { rows: 7, outputs: 32, blocks: 2, shards: 2, shared_input: tile == 1 };
        let epilogue = if tile == 1 { Epilogue::ActMul(Activation::Silu) } else { Epilogue::Store };
        for form in [Form::F32, Form::Int12] {
            let outcome = experts::product(rig, &spec, (DType::Q4_0, form), epilogue, tile, &shape);
            note("matmul", format!("q4_0, {form:?}, experts in tiles of {tile}"), outcome);
        }
    }
    let outcome = experts::combine(rig, &spec, super::experts::Sum::Added, 7, 96);
    note("combine_experts", "3 of 8".into(), outcome);
}
