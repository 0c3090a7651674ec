//! Cases of the kernels that read packed weights: `matmul` and `embed`.

use super::data::{Source, Spread};
use super::int12::{check_left, product, quantized, roundings, set_squares};
use super::norms::check_rows;
use super::rig::{Dispatch, Rig, failed, floats};
use super::rows::wide;
use super::{Found, Outcome};
use crate::base::DType;
use crate::gpu::Slice;
use crate::kernels::Form;
use crate::kernels::embed::{self as embed_kernel, EmbedParams, Table};
use crate::kernels::matmul::{self as matmul_kernel, Batch, Epilogue, MatmulParams};
use crate::layout::StepHeader;
use crate::layout::inputs::NONE;
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
    /// Blocks of 32 columns; formats with super-blocks get the next whole number of those.
    pub blocks: usize,
    /// Into how many row ranges the matrix is cut.
    pub shards: usize,
}

/// Blocks of 32 columns in whole blocks of the format.
fn whole_blocks(dtype: DType, shape: &Shape) -> usize {
    shape.blocks.next_multiple_of(dtype.block_elements().div_ceil(32))
}

/// Planes by their names in the shaders.
pub(super) type Planes = Vec<(&'static str, Slice)>;

/// What logits are limited to here.
pub(super) const CAP: f32 = 7.5;

/// Uploads the planes of each shard, of whole units of groups, as (groups, planes).
pub(super) fn upload(
    rig: &Rig<'_>,
    matrix: &FusedMatrix<'_>,
    shards: usize,
    unit: usize,
) -> Result<Vec<(Range<usize>, Planes)>, String> {
    let words = matrix.plane_words_per_group();
    let count = matrix.groups();
    let units = count.div_ceil(unit);
    let shards = shards.min(units);
    let mut all = Vec::new();
    for shard in 0..shards {
        let groups = units * shard / shards * unit..(units * (shard + 1) / shards * unit).min(count);
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
    let Shape { tokens, .. } = *shape;
    // What is left for the next product is whole blocks.
    let rows = if spec.epilogue.leaves() { shape.rows.next_multiple_of(32) } else { shape.rows };
    let blocks = whole_blocks(spec.dtype, shape);
    let columns = 32 * blocks;
    let gated = spec.epilogue.is_gated();
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
    let squares: Vec<f32> = (0..tokens * blocks).map(|block| (block % 13) as f32 * 0.7).collect();
    let (x, x_slice) = match spec.form {
        Form::F32 => (wide(&x), rig.input(&padded).map_err(failed)?),
        Form::Int12 => {
            let (exact, mut words) = quantized(&x);
            if spec.normed {
                set_squares(&mut words, &squares);
            }
            words.resize(tokens.next_multiple_of(8) * columns / 2, f32::NAN.to_bits());
            (exact, rig.input(&words).map_err(failed)?)
        }
    };
    let bias_slice = rig.input(&bias).map_err(failed)?;
    // Wanted rows come after two of an earlier pass; all rows are another number that must not matter then.
    let (first_sample, header) = match spec.batch == Batch::Samples {
        true => (2, StepHeader { row_count: 1, sample_count: tokens as u32 + 2, ..Default::default() }),
        false => (0, StepHeader { row_count: tokens as u32, ..Default::default() }),
    };
    let inputs = rig.step_inputs(&header, &[]).map_err(failed)?;
    let output = rig.output(&before).map_err(failed)?;
    let left = rig.output(&vec![u32::MAX; tokens * rows / 2]).map_err(failed)?;
    let next_weight = Source::new(79).numbers(rows, Spread::Plain);
    let next_slice = rig.input(&next_weight).map_err(failed)?;

    let unit = if spec.epilogue.is_gated() && spec.epilogue.leaves() { 2 } else { 1 };
    let shards = upload(rig, &matrix, shape.shards, unit)?;
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
            first_sample,
            sample_limit: u32::MAX,
            cap: CAP,
            norm_eps: EPS,
            ..Default::default()
        };
        params.push(rig.params(&value).map_err(failed)?);
    }
    let mut dispatches = Vec::new();
    for ((groups, planes), params) in shards.iter().zip(&params) {
        let mut arguments = vec![("inputs", &inputs), ("x", &x_slice), ("params", params)];
        arguments.extend(planes.iter().map(|(name, plane)| (*name, plane)));
        match spec.epilogue {
            Epilogue::ActMulInt12(_) => arguments.push(("result", &left.slice)),
            Epilogue::AddLeft => {
                arguments.extend([("out", &output.slice), ("result", &left.slice), ("next_weight", &next_slice)]);
            }
            _ => arguments.push(("out", &output.slice)),
        }
        if spec.epilogue.has_bias() {
            arguments.push(("bias", &bias_slice));
        }
        dispatches.push(Dispatch {
            variant: matmul_kernel::variant(spec, tile, &rig.gpu.profile),
            arguments,
            grid: matmul_kernel::grid(spec.epilogue, groups.len(), tokens, tile, &rig.gpu.profile),
        });
    }
    let found = rig.run(&dispatches, &[&output, &left])?;

    let product = |part: &MatrixRef<'_>| {
        let (mut twin, mut magnitude) = product(part, spec.form, &x);
        if spec.normed {
            let of_token =
                |token: usize| squares[token * blocks..][..blocks].iter().map(|&square| f64::from(square)).sum::<f64>();
            for (index, (twin, magnitude)) in twin.iter_mut().zip(&mut magnitude).enumerate() {
                let factor = 1.0 / (of_token(index / rows) / columns as f64 + f64::from(EPS)).sqrt();
                (*twin, *magnitude) = (*twin * factor, *magnitude * factor);
            }
        }
        (twin, magnitude)
    };
    let ops = roundings(spec.form, columns) + if spec.normed { blocks + 8 } else { 0 };
    let (mut twin, mut magnitude) = product(&parts[0]);
    for (index, (twin, magnitude)) in twin.iter_mut().zip(&mut magnitude).enumerate() {
        let bias = if spec.epilogue.has_bias() { f64::from(bias[index % rows]) } else { 0.0 };
        let before = match spec.epilogue {
            Epilogue::Add | Epilogue::AddBias | Epilogue::AddLeft => f64::from(before[index]),
            _ => 0.0,
        };
        *twin += bias + before;
        *magnitude += bias.abs() + before.abs();
    }
    match spec.epilogue {
        Epilogue::Store | Epilogue::Bias | Epilogue::Add | Epilogue::AddBias | Epilogue::AddLeft => {}
        Epilogue::BiasAct(activation) => {
            magnitude = super::rows::activated_magnitude(activation, &twin, &magnitude);
            twin.iter_mut().for_each(|value| *value = reference::act_mul::activate(activation, *value));
        }
        Epilogue::ActMul(activation) | Epilogue::ActMulInt12(activation) => {
            let (up, up_magnitude) = product(&parts[1]);
            let combined = super::rows::gated_magnitude(activation, &twin, &magnitude, &up, &up_magnitude);
            twin = reference::act_mul::gated(activation, &twin, &up);
            magnitude = combined;
        }
        Epilogue::Heads(_) => return Err("heads have a case of their own".into()),
        // The slope of the limit is 1 at most, and its own error is a few units of what it gives.
        Epilogue::SoftCap => {
            twin.iter_mut().for_each(|value| *value = reference::attention::soft_cap(*value, Some(CAP)));
        }
    }
    if matches!(spec.epilogue, Epilogue::ActMulInt12(_)) {
        check_rows(Form::Int12, &found[1], &twin, &magnitude, ops)?;
        return Ok(Found { bits: found[1].clone(), worst_share: 0.0 });
    }
    let close = check_close(&floats(&found[0]), &twin, &magnitude, ops)?;
    if spec.epilogue == Epilogue::AddLeft {
        check_left(&floats(&found[0]), &next_weight, &found[1])?;
    }
    // Rows stand together, so that those of few tokens begin those of many.
    let [sums, left] = [found[0].chunks(rows), found[1].chunks(rows / 2)];
    let bits = match spec.epilogue {
        Epilogue::AddLeft => sums.zip(left).flat_map(|(sums, left)| [sums, left].concat()).collect(),
        _ => found[0].clone(),
    };
    Ok(Found { bits, worst_share: close.worst_share })
}

/// For norms whose factor is missing.
const EPS: f32 = 1e-5;

/// The soft limit by itself, for sums that are exact because all but one of their terms are zero.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn soft_cap(rig: &Rig<'_>) -> Outcome {
    const COLUMNS: usize = 32;
    // Both halves of the function, where they meet, its end, and far beyond.
    let mut sums: Vec<f32> = (0..120).map(|step| CAP * (step as f32 - 60.0) / 40.0).collect();
    sums.extend([1e-6, -1e-3, 0.6249 * CAP, 0.6251 * CAP, -9.0 * CAP, 11.0 * CAP, -1e4, 3e38]);
    let mut file = vec![0.0f32; sums.len() * COLUMNS];
    file.iter_mut().step_by(COLUMNS).zip(&sums).for_each(|(weight, &sum)| *weight = sum);
    let mut x = vec![0.0f32; COLUMNS];
    x[0] = 1.0;
    let part = MatrixRef::new(DType::F32, sums.len(), COLUMNS, bytemuck::cast_slice(&file)).map_err(failed)?;
    let matrix = FusedMatrix::new(vec![part], Arrangement::Stacked).map_err(failed)?;
    let (groups, planes) = upload(rig, &matrix, 1, 1)?.remove(0);
    let params = MatmulParams {
        blocks: 1,
        segments: 1,
        group_count: groups.len() as u32,
        row_count: sums.len() as u32,
        out_stride: sums.len() as u32,
        x_stride: (COLUMNS / 4) as u32,
        cap: CAP,
        ..Default::default()
    };
    let params = rig.params(&params).map_err(failed)?;
    let inputs = rig.step_inputs(&StepHeader { row_count: 1, ..Default::default() }, &[]).map_err(failed)?;
    let x = rig.input(&x).map_err(failed)?;
    let output = rig.output(&vec![f32::NAN; sums.len()]).map_err(failed)?;
    let spec = matmul_kernel::Spec {
        dtype: DType::F32,
        form: Form::F32,
        normed: false,
        epilogue: Epilogue::SoftCap,
        batch: Batch::Rows,
    };
    let mut arguments = vec![("inputs", &inputs), ("x", &x), ("out", &output.slice), ("params", &params)];
    arguments.extend(planes.iter().map(|(name, plane)| (*name, plane)));
    let variant = matmul_kernel::variant(&spec, 1, &rig.gpu.profile);
    let grid = matmul_kernel::grid(Epilogue::SoftCap, groups.len(), 1, 1, &rig.gpu.profile);
    let found = rig.run(&[Dispatch { variant, arguments, grid }], &[&output])?.remove(0);
    let twin: Vec<f64> = sums.iter().map(|&sum| reference::attention::soft_cap(f64::from(sum), Some(CAP))).collect();
    let magnitude: Vec<f64> = twin.iter().map(|value| value.abs()).collect();
    // Quotient, polynomial or exponential, product: some ten units.
    let close = check_close(&floats(&found), &twin, &magnitude, 10)?;
    Ok(Found { bits: found, worst_share: close.worst_share })
}

/// Rows of an embedding. Tokens with a scale of 1 are exact but for the flushing of denormals, which is why their bounds have
/// magnitude zero; positions are added to what is there, with another scale.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn embed(rig: &Rig<'_>, dtype: DType, table: Table, shape: &Shape, spread: Spread) -> Outcome {
    let Shape { tokens, rows, shards, .. } = *shape;
    let blocks = whole_blocks(dtype, shape);
    let columns = 32 * blocks;
    let mut source = Source::new(200 + dtype as u32);
    let file = source.weights(dtype, rows * columns, spread);
    let part = MatrixRef::new(dtype, rows, columns, &file).map_err(failed)?;
    let matrix = FusedMatrix::new(vec![part.clone()], Arrangement::Stacked).map_err(failed)?;
    let shards = upload(rig, &matrix, shards, 1)?;
    // The first and the last token, and some between.
    let ids: Vec<u32> = (0..tokens).map(|t| (t * (rows - 1) / tokens.max(2).saturating_sub(1)) as u32).collect();
    let positions = table == Table::Positions;
    let scale = if positions { 1.7 } else { 1.0 };
    let entry = |&id: &u32| if positions { [u32::MAX - 1, 0, id, 0] } else { [id, 0, u32::MAX - 1, 0] };
    // The last row is padding, which must stay as it is where positions are looked up.
    let mut table_rows: Vec<[u32; 4]> = ids.iter().map(entry).collect();
    table_rows.push([0, NONE, NONE, NONE]);
    let row_slice = rig.input(&table_rows).map_err(failed)?;
    let before = source.numbers((tokens + 1) * columns, Spread::Plain);
    let output = rig.output(&before).map_err(failed)?;
    let mut params = Vec::new();
    for (groups, _) in &shards {
        let first = groups.start * 32;
        let entry_count = ((groups.end * 32).min(rows) - first) as u32;
        let value = EmbedParams { blocks: blocks as u32, first_entry: first as u32, entry_count, scale };
        params.push(rig.params(&value).map_err(failed)?);
    }
    let dispatch = |((_, planes), params): (&'_ (Range<usize>, Planes), &'_ Slice)| (planes.clone(), params.clone());
    let shards: Vec<(Planes, Slice)> = shards.iter().zip(&params).map(dispatch).collect();
    let mut dispatches = Vec::new();
    for (planes, params) in &shards {
        let mut arguments = vec![("rows", &row_slice), ("x", &output.slice), ("params", params)];
        arguments.extend(planes.iter().map(|(name, plane)| (*name, plane)));
        let variant = embed_kernel::variant(dtype, table, &rig.gpu.profile);
        dispatches.push(Dispatch { variant, arguments, grid: embed_kernel::grid(tokens + 1) });
    }
    let mut found = rig.run(&dispatches, &[&output])?.remove(0);
    let padding = found.split_off(tokens * columns);
    if positions && floats(&padding) != before[tokens * columns..] {
        return Err("padding was written".into());
    }
    let decode = |row: usize, out: &mut [f32]| part.decode_row(row, out);
    let mut twin: Vec<f64> = ids.iter().flat_map(|&id| reference::embed::embed(&decode, columns, id)).collect();
    let mut magnitude = vec![0.0; twin.len()];
    if positions {
        for ((twin, magnitude), &before) in twin.iter_mut().zip(&mut magnitude).zip(&before) {
            *twin = *twin * f64::from(scale) + f64::from(before);
            *magnitude = twin.abs() + f64::from(before).abs();
        }
    }
    let close = check_close(&floats(&found), &twin, &magnitude, 2)?;
    Ok(Found { bits: found, worst_share: close.worst_share })
}
