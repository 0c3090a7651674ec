//! Products on the matrix units of an adapter (tensor cores, simdgroup matrices): f16 factors, f32 sums. Twin:
//! `reference/matmul.rs`, within what rounding to f16 allows.
//!
//! Used for all numbers of rows of a matrix or for none, since sums differ from those of [`matmul`] in their last
//! bits. Only where the profile names a tile, which takes a device that opened with wgpu's experimental feature, and where
//! [`check`] has compared it with register tiles when the device was opened. **It has not run on real hardware yet**: no adapter
//! at hand has matrix units. Tests translate it for Vulkan and Metal and create its pipelines on the device that does nothing.

use super::heads::Heads;
use super::matmul::{self, Batch, Epilogue, MatmulParams, Spec};
use super::{Form, KvDtype};
use crate::base::DType;
use crate::base::rng::philox2x32;
use crate::error::{Error, Result};
use crate::gpu::memory::{Slice, Use};
use crate::gpu::{Const, Gpu, MatrixTile, Profile, Recorder, Variant};

/// Tokens of a workgroup.
pub const TILE: u32 = 32;
/// Groups of 32 rows of a workgroup, a subgroup each.
const GROUPS: u32 = 2;

/// Whether products of `spec` run on matrix units here. Quantised weights have integer products, which are exact and as fast on
/// adapters with matrix units; f32 weights would lose precision; experts have too few rows each.
pub fn runs(spec: &Spec, profile: &Profile) -> bool {
    let format = matches!(spec.dtype, DType::F16 | DType::BF16);
    profile.matrix.is_some() && format && spec.batch != Batch::Experts && !spec.normed && !spec.epilogue.leaves()
}

/// The variant for `spec` with tiles of `matrix`.
pub fn variant(spec: &Spec, matrix: MatrixTile) -> Variant {
    let mut variant = matmul::variant(spec, TILE, &Profile::baseline(crate::gpu::DeviceKind::Discrete));
    variant.kernel = "matmul_units";
    variant.slots.retain(|(slot, _)| *slot != "arithmetic");
    variant.slots.push(("matrix", matrix.slot()));
    variant.consts.retain(|(name, _)| !matches!(*name, "TILE" | "SEGMENT_LANES" | "NORMED"));
    variant.consts.extend([("TILE", Const::U32(TILE)), ("GROUPS", Const::U32(GROUPS))]);
    variant.workgroup = [32 * GROUPS, 1, 1];
    variant
}

/// Workgroups for `groups` groups of rows and `tokens` tokens.
pub fn grid(groups: usize, tokens: usize) -> [u32; 3] {
    [groups.div_ceil(GROUPS as usize) as u32, tokens.div_ceil(TILE as usize) as u32, 1]
}

/// Both formats with every epilogue, if the profile has matrix units.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    let Some(matrix) = profile.matrix else { return Vec::new() };
    let mut variants = Vec::new();
    for dtype in [DType::F16, DType::BF16] {
        let rows = Epilogue::ALL.into_iter().filter(|epilogue| !epilogue.leaves()).map(|epilogue| Spec {
            dtype,
            form: Form::F32,
            normed: false,
            epilogue,
            batch: Batch::Rows,
        });
        let samples =
            Spec { dtype, form: Form::F32, normed: false, epilogue: Epilogue::SoftCap, batch: Batch::Samples };
        let heads = [KvDtype::F16, KvDtype::F32].map(|kv| Spec {
            epilogue: Epilogue::Heads(Heads { heads: 9, kv_heads: 3, head_dim: 64, rotary_dim: 64, kv }),
            batch: Batch::Rows,
            ..samples
        });
        variants.extend(rows.chain([samples]).chain(heads).map(|spec| variant(&spec, matrix)));
    }
    variants
}

/// Blocks, groups and tokens of [`check`]: an odd group, and two tiles of which the second is nearly empty.
const BLOCKS: usize = 5;
const CHECK_GROUPS: usize = 3;
const CHECK_TOKENS: usize = 34;

/// Multiplies on matrix units and with register tiles and compares.
///
/// # Errors
/// They differ by more than rounding activations to f16 explains, or rows differ from themselves in another place of the batch;
/// or the device failed.
pub fn check(gpu: &Gpu) -> Result<()> {
    let Some(matrix) = gpu.profile.matrix else { return Ok(()) };
    let spec =
        Spec { dtype: DType::F16, form: Form::F32, normed: false, epilogue: Epilogue::Store, batch: Batch::Rows };
    let rows = CHECK_GROUPS * 32;
    let number = |index: u32, salt: u32| philox2x32([index, 0x7e57], salt)[0];
    // Halves between -1 and 1 in pairs: the exponent of 2^-1, or less.
    let half = |bits: u32| (bits & 0x8000) | (0x3000 + (bits & 0x0bff));
    let weights = (0..(CHECK_GROUPS * BLOCKS * 128 * 4) as u32).map(|i| half(number(i, 1)) | half(number(i, 2)) << 16);
    let columns = 32 * BLOCKS;
    // The last token is the first one again.
    let tokens = (0..CHECK_TOKENS).map(|token| token % (CHECK_TOKENS - 1));
    let x = tokens.flat_map(|token| (0..columns).map(move |column| number((token * columns + column) as u32, 3)));
    let x: Vec<f32> = x.map(|bits| bits as i32 as f32 / 2_147_483_648.0).collect();
    // A tile of registers reads up to eight rows.
    let room = CHECK_TOKENS.next_multiple_of(8) * columns - x.len();
    let x: Vec<f32> = x.into_iter().chain(std::iter::repeat_n(0.0, room)).collect();
    let mut header = [0u32; 24];
    header[0] = CHECK_TOKENS as u32;
    let params = MatmulParams {
        blocks: BLOCKS as u32,
        segments: matmul::segments(BLOCKS, &gpu.profile),
        group_count: CHECK_GROUPS as u32,
        row_count: rows as u32,
        out_stride: rows as u32,
        x_stride: (columns / 4) as u32,
        ..Default::default()
    };
    let filled = |bytes: &[u8], purpose| -> Result<Slice> {
        let buffer = gpu.memory.create("check of matrix units", bytes.len() as u64, purpose)?;
        gpu.write(&buffer, bytes);
        Ok(buffer.whole())
    };
    let codes = filled(bytemuck::cast_slice(&weights.collect::<Vec<u32>>()), Use::Storage)?;
    let x = filled(bytemuck::cast_slice(&x), Use::Storage)?;
    let inputs = filled(bytemuck::cast_slice(&header), Use::Storage)?;
    let params = filled(bytemuck::bytes_of(&params), Use::Uniform)?;
    let tile = matmul::tile(CHECK_TOKENS);
    let ways = [
        (
            matmul::variant(&spec, tile, &gpu.profile),
            matmul::grid(spec.epilogue, CHECK_GROUPS, CHECK_TOKENS, tile, &gpu.profile),
        ),
        (variant(&spec, matrix), grid(CHECK_GROUPS, CHECK_TOKENS)),
    ];
    let mut found = Vec::new();
    for (variant, grid) in ways {
        let out = gpu.memory.create("check of matrix units", (CHECK_TOKENS * rows * 4) as u64, Use::Storage)?.whole();
        let arguments = [("inputs", &inputs), ("x", &x), ("out", &out), ("params", &params), ("codes", &codes)];
        let mut recorder = Recorder::default();
        recorder.dispatch(gpu, "check", &gpu.registry.get(&variant)?, &arguments, grid)?;
        found.push(bytemuck::pod_collect_to_vec::<u8, f32>(&gpu.run(&recorder.finish(), &out)?));
    }
    compare(&found[0], &found[1], rows, columns).map_err(Error::bug)
}

/// Compares rows of sums over `columns` columns: those of registers with those of matrix units.
fn compare(registers: &[f32], units: &[f32], rows: usize, columns: usize) -> std::result::Result<(), String> {
    // Weights are f16 as they are and below 1; a rounded activation is off by 2^-12 at most, and sums by far less.
    let bound = columns as f32 / 2048.0;
    let far = registers.iter().zip(units).position(|(a, b)| (a - b).is_nan() || (a - b).abs() > bound);
    if let Some(at) = far {
        let (row, token, a, b) = (at % rows, at / rows, registers[at], units[at]);
        return Err(format!("matrix units give {b} for row {row} of token {token}, registers {a}"));
    }
    // Zeros everywhere would agree with zeros.
    if units.iter().all(|value| *value == 0.0) {
        return Err("both ways give nothing but zeros".into());
    }
    match units[..rows] == units[units.len() - rows..] {
        true => Ok(()),
        false => Err("equal tokens have other bits in another place of the batch".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_at_the_edges() {
        assert_eq!(grid(0, 1), [0, 1, 1]);
        assert_eq!(grid(1, 32), [1, 1, 1]);
        assert_eq!(grid(3, 33), [2, 2, 1]);
    }

    #[test]
    fn units_serve_halves_of_all_rows_or_nothing() {
        let spec = |dtype, batch| Spec { dtype, form: Form::F32, normed: false, epilogue: Epilogue::Store, batch };
        let mut profile = Profile::cuda_class();
        assert!(!runs(&spec(DType::F16, Batch::Rows), &profile));
        profile.matrix = Some(MatrixTile::Sixteen);
        assert!(runs(&spec(DType::F16, Batch::Rows), &profile) && runs(&spec(DType::BF16, Batch::Samples), &profile));
        assert!(!runs(&spec(DType::F32, Batch::Rows), &profile) && !runs(&spec(DType::Q4_0, Batch::Rows), &profile));
        assert!(!runs(&spec(DType::F16, Batch::Experts), &profile));
    }

    #[test]
    fn differences_are_found() {
        let good = [0.5f32, -1.0, 2.0, 0.25, 0.5, -1.0];
        assert_eq!(compare(&good, &good, 2, 32), Ok(()));
        let bent = |at: usize, value: f32| {
            let mut units = good;
            units[at] = value;
            compare(&good, &units, 2, 32).unwrap_err()
        };
        assert!(bent(3, 0.3).contains("row 1 of token 1"));
        assert!(bent(0, f32::NAN).contains("row 0 of token 0"));
        assert!(bent(4, 0.500_1).contains("other bits"));
        assert!(compare(&[0.0; 4], &[0.0; 4], 2, 32).unwrap_err().contains("zeros"));
    }
}
