//! Every kernel against its f64 twin on cases made up here, on whatever device there is. `octavo doctor` runs the small
//! closed list of [`run`]; `tests/kernels.rs` runs the same cases over many more shapes and compares bits.
//!
//! A case uploads its inputs, runs its dispatches twice through the same [`Recorder`](crate::gpu::Recorder) as the
//! engine, demands equal bits of both runs and untouched memory around every output, and measures the result against the
//! bound of [`tolerance`](crate::reference::tolerance). This is the one place below `kernels` that knows slots and
//! tokens, because a sampler cannot be tried without them.

pub mod attention;
pub mod data;
pub mod matrix;
pub mod rig;
pub mod rows;
pub mod sampler;
pub mod tables;

use super::{KvDtype, attention as attention_kernel, matmul, rope_kv};
use crate::base::DType;
use crate::error::Result;
use crate::gpu::Gpu;
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
        let spec = matmul::Spec { dtype, epilogue: matmul::Epilogue::Store, sampled: false };
        for tile in [1, 4] {
            let outcome = matrix::matmul(rig, &spec, tile, &shape, Spread::Heavy);
            note("matmul", format!("{dtype}, tile of {tile}"), outcome);
        }
        note("embed", dtype.to_string(), matrix::embed(rig, dtype, &shape, Spread::Plain));
    }
    for epilogue in [matmul::Epilogue::Bias, matmul::Epilogue::Add, matmul::Epilogue::SiluMul] {
        let shape = matrix::Shape { tokens: 9, rows: 32, blocks: 2, shards: 1 };
        let spec = matmul::Spec { dtype: DType::Q8_0, epilogue, sampled: false };
        note("matmul", format!("q8_0, {epilogue:?}"), matrix::matmul(rig, &spec, 8, &shape, Spread::Plain));
    }
    note("norm", "all rows".into(), rows::norm(rig, 5, 192, false, Spread::Heavy));
    note("norm", "wanted rows".into(), rows::norm(rig, 5, 192, true, Spread::Plain));
    note("act_mul", "up to 1e4".into(), rows::act_mul(rig, 3, 96));
    for (kv, qk_norm) in [(KvDtype::F16, None), (KvDtype::F32, Some(1e-6))] {
        let spec = rope_kv::Spec { heads: 4, kv_heads: 2, head_dim: 32, rotary_dim: 24, qk_norm, kv };
        let name = if qk_norm.is_some() { "head norms, " } else { "" };
        note("rope_kv", format!("{name}{}", kv.name()), rows::rope_kv(rig, &spec, 5));
        let spec = attention_kernel::Spec { heads: 6, kv_heads: 2, head_dim: 32, scale: 0.2, kv };
        for mode in [attention::Path::Prefill, attention::Path::Decode, attention::Path::Split] {
            note(mode.kernel(), format!("{mode:?}, {}", kv.name()), attention::attend(rig, &spec, mode, &[300, 17], 7));
        }
    }
    for case in sampler::doctor_cases() {
        note("sample", case.name.clone(), sampler::sample(rig, &case));
    }
    note("resolve", "decode and prompt rows".into(), tables::resolve(rig));
    note("update", "slots and tables".into(), tables::update(rig));
    gpu.check()?;
    Ok(verdicts)
}
