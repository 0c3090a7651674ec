//! Cases of the kernels that read packed weights: `matmul` and `embed`.

use super::data::{Source, Spread};
use super::rig::{Dispatch, Rig, failed, floats};
use super::{Found, Outcome};
use crate::base::DType;
use crate::gpu::Slice;
use crate::kernels::embed::{self as embed_kernel, EmbedParams};
use crate::kernels::matmul::{self as matmul_kernel, Epilogue, MatmulParams};
use crate::layout::StepHeader;
use crate::reference;
use crate::reference::tolerance::check_close;
use crate::weights::pack::{Arrangement, FusedMatrix};
use crate::weights::tensors::MatrixRef;
use std::ops::Range;

/// Sizes of a case.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Rows of activations.
    pub tokens: usize,
    /// Outputs.
    pub rows: usize,
    /// Blocks of 32 columns.
    pub blocks: usize,
    /// Into how many row ranges the matrix is cut.
    pub shards: usize,
}

type Planes = Vec<(&'static str, Slice)>;

/// Uploads the planes of each shard, as (groups, planes).
fn upload(rig: &Rig<'_>, matrix: &FusedMatrix<'_>, shards: usize) -> Result<Vec<(Range<usize>, Planes)>, String> {
    let words = matrix.plane_words_per_group();
    let count = matrix.groups();
    let shards = shards.min(count);
    let mut all = Vec::new();
    for shard in 0..shards {
        let groups = count * shard / shards..count * (shard + 1) / shards;
        let [mut codes, mut scales, mut bits] =
            [words.codes, words.scales, words.bits].map(|words| vec![0; words * groups.len()]);
        matrix.pack(groups.clone(), &mut codes, &mut scales, &mut bits);
        let mut planes = Vec::new();
        for (name, plane) in [("codes", codes), ("scales", scales), ("bits", bits)] {
            if !plane.is_empty() {
                planes.push((name, rig.input(&plane).map_err(failed)?));
            }
        }
        all.push((groups, planes));
    }
    Ok(all)
}

/// Product, epilogue and all, of seeded data. The seed does not depend on tile, shards or the number of tokens, and
/// activations of a token are the same in every case, so that the bits of equal outputs can be compared between cases.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn matmul(rig: &Rig<'_>, spec: &matmul_kernel::Spec, tile: u32, shape: &Shape, spread: Spread) -> Outcome {
    let Shape { tokens, rows, blocks, .. } = *shape;
    let columns = 32 * blocks;
    let gated = spec.epilogue == Epilogue::SiluMul;
    let mut source = Source::new(spec.dtype as u32);
    let file: Vec<Vec<u8>> =
        (0..if gated { 2 } else { 1 }).map(|_| source.weights(spec.dtype, rows * columns, spread)).collect();
    let bias = source.numbers(rows, Spread::Plain);
    let mut source = Source::new(77);
    // Denormals that only matter if they are flushed differently would drown in the other terms, hence plain weights
    // meet extreme activations and the reverse.
    let x = source.numbers(tokens * columns, if spread == Spread::Extreme { Spread::Plain } else { spread });
    let before = Source::new(78).numbers(tokens * rows, Spread::Plain);

    let parts = file.iter().map(|bytes| MatrixRef::new(spec.dtype, rows, columns, bytes));
    let parts = parts.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let arrangement = if gated { Arrangement::GateUp } else { Arrangement::Stacked };
    let matrix = FusedMatrix::new(parts.clone(), arrangement).map_err(failed)?;

    // A tile may read activations of tokens that do not exist, up to a whole tile; they are NaN here.
    let mut padded = x.clone();
    padded.resize(tokens.next_multiple_of(8) * columns, f32::NAN);
    let x_slice = rig.input(&padded).map_err(failed)?;
    let bias_slice = rig.input(&bias).map_err(failed)?;
    // Wanted rows come after two of an earlier pass; all rows are another number that must not matter then.
    let (first_token, header) = match spec.sampled {
        true => (2, StepHeader { row_count: 1, sample_count: tokens as u32 + 2, ..Default::default() }),
        false => (0, StepHeader { row_count: tokens as u32, ..Default::default() }),
    };
    let inputs = rig.step_inputs(&header, &[]).map_err(failed)?;
    let output = rig.output(&before).map_err(failed)?;

    let shards = upload(rig, &matrix, shape.shards)?;
    let per_group = if gated { 16 } else { 32 };
    let mut params = Vec::new();
    for (groups, _) in &shards {
        let outputs = groups.start * per_group..(groups.end * per_group).min(rows);
        let value = MatmulParams {
            blocks: blocks as u32,
            segments: matmul_kernel::segments(blocks, &rig.gpu.profile),
            group_count: groups.len() as u32,
            row_count: outputs.len() as u32,
            out_offset: outputs.start as u32,
            out_stride: rows as u32,
            x_stride: (columns / 4) as u32,
            first_token,
            token_limit: u32::MAX,
        };
        params.push(rig.params(&value).map_err(failed)?);
    }
    let mut dispatches = Vec::new();
    for ((groups, planes), params) in shards.iter().zip(&params) {
        let mut arguments = vec![("inputs", &inputs), ("x", &x_slice), ("out", &output.slice), ("params", params)];
        arguments.extend(planes.iter().map(|(name, plane)| (*name, plane)));
        if spec.epilogue == Epilogue::Bias {
            arguments.push(("bias", &bias_slice));
        }
        dispatches.push(Dispatch {
            variant: matmul_kernel::variant(spec, tile, &rig.gpu.profile),
            arguments,
            grid: matmul_kernel::grid(groups.len(), tokens, tile, &rig.gpu.profile),
        });
    }
    let found = rig.run(&dispatches, &[&output])?.remove(0);

    let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let product = |part: &MatrixRef<'_>| {
        reference::matmul::matmul(&|row, out: &mut [f32]| part.decode_row(row, out), rows, columns, &x)
    };
    let (mut twin, mut magnitude) = product(&parts[0]);
    match spec.epilogue {
        Epilogue::Store => {}
        Epilogue::Bias | Epilogue::Add => {
            for (index, (twin, magnitude)) in twin.iter_mut().zip(&mut magnitude).enumerate() {
                let added = if spec.epilogue == Epilogue::Bias { bias[index % rows] } else { before[index] };
                *twin += f64::from(added);
                *magnitude += f64::from(added).abs();
            }
        }
        Epilogue::SiluMul => {
            let (up, up_magnitude) = product(&parts[1]);
            let combined = super::rows::gated_magnitude(&twin, &magnitude, &up, &up_magnitude);
            twin = reference::act_mul::silu_mul(&twin, &up);
            magnitude = combined;
        }
    }
    // One fma a column, the epilogue, and segment sums.
    let close = check_close(&floats(&found), &twin, &magnitude, columns + 12)?;
    Ok(Found { bits: found, worst_share: close.worst_share })
}

/// Rows of an embedding: exact but for the flushing of denormals, which is why each bound has magnitude zero.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn embed(rig: &Rig<'_>, dtype: DType, shape: &Shape, spread: Spread) -> Outcome {
    let Shape { tokens, rows, blocks, shards } = *shape;
    let columns = 32 * blocks;
    let mut source = Source::new(200 + dtype as u32);
    let file = source.weights(dtype, rows * columns, spread);
    let part = MatrixRef::new(dtype, rows, columns, &file).map_err(failed)?;
    let matrix = FusedMatrix::new(vec![part], Arrangement::Stacked).map_err(failed)?;
    let shards = upload(rig, &matrix, shards)?;
    // The first and the last token, and some between.
    let ids: Vec<u32> = (0..tokens).map(|t| (t * (rows - 1) / tokens.max(2).saturating_sub(1)) as u32).collect();
    let table: Vec<[u32; 4]> = ids.iter().map(|&id| [id, 0, 0, 0]).collect();
    let row_slice = rig.input(&table).map_err(failed)?;
    let output = rig.output(&vec![f32::NAN; tokens * columns]).map_err(failed)?;
    let mut params = Vec::new();
    for (groups, _) in &shards {
        let first = groups.start * 32;
        let token_count = ((groups.end * 32).min(rows) - first) as u32;
        let value = EmbedParams { blocks: blocks as u32, first_token: first as u32, token_count, reserved: 0 };
        params.push(rig.params(&value).map_err(failed)?);
    }
    let dispatch = |((_, planes), params): (&'_ (Range<usize>, Planes), &'_ Slice)| (planes.clone(), params.clone());
    let shards: Vec<(Planes, Slice)> = shards.iter().zip(&params).map(dispatch).collect();
    let mut dispatches = Vec::new();
    for (planes, params) in &shards {
        let mut arguments = vec![("rows", &row_slice), ("x", &output.slice), ("params", params)];
        arguments.extend(planes.iter().map(|(name, plane)| (*name, plane)));
        let variant = embed_kernel::variant(dtype, &rig.gpu.profile);
        dispatches.push(Dispatch { variant, arguments, grid: embed_kernel::grid(tokens) });
    }
    let found = rig.run(&dispatches, &[&output])?.remove(0);
    let decode = |row: usize, out: &mut [f32]| part.decode_row(row, out);
    let twin: Vec<f64> = ids.iter().flat_map(|&id| reference::embed::embed(&decode, columns, id)).collect();
    let close = check_close(&floats(&found), &twin, &vec![0.0; twin.len()], 1)?;
    Ok(Found { bits: found, worst_share: close.worst_share })
}
