//! Heads from one product against the two dispatches that it replaces, which have twins of their own: the same bits.

use super::cache::Cache;
use super::data::{Source, Spread};
use super::int12::{quantized, set_squares};
use super::matrix::upload;
use super::rig::{Dispatch, Output, Rig, failed};
use super::{Found, Outcome};
use crate::base::{BLOCK_TOKENS, DType};
use crate::kernels::heads::Heads;
use crate::kernels::matmul::{self, Batch, Epilogue, MatmulParams, Spec};
use crate::kernels::{Form, rope_kv};
use crate::layout::StepHeader;
use crate::layout::inputs::NONE;
use crate::model::rope::cos_sin_table;
use crate::model::spec::{RopeScaling, RopeSpec};
use crate::weights::pack::{Arrangement, FusedMatrix};
use crate::weights::tensors::MatrixRef;

/// Positions in the table of rotations.
const POSITIONS: usize = 101;
const BLOCKS: usize = 8;

/// Product, rotation and KV write of `tokens` rows at scattered positions, the second of them finished. Rows in int12 lack the factor
/// of their norm, as behind the layer before.
///
/// # Errors
/// A bit differs, or the device failed.
pub fn heads(rig: &Rig<'_>, dtype: DType, form: Form, heads: Heads, tile: u32, tokens: usize) -> Outcome {
    let Heads { heads: query_heads, kv_heads, head_dim, rotary_dim, kv } = heads;
    let columns = 32 * BLOCKS;
    let width = (query_heads + 2 * kv_heads) * head_dim;
    let mut source = Source::new(41);
    let files: Vec<(usize, Vec<u8>)> = [query_heads, kv_heads, kv_heads]
        .map(|count| (count * head_dim, source.weights(dtype, count * head_dim * columns, Spread::Plain)))
        .into();
    let parts = files.iter().map(|(rows, file)| MatrixRef::new(dtype, *rows, columns, file));
    let parts = parts.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let x = Source::new(42).numbers(tokens.next_multiple_of(8) * columns, Spread::Plain);
    let x = match form {
        Form::F32 => rig.input(&x).map_err(failed)?,
        Form::Int12 => {
            let (_, mut words) = quantized(&x);
            let squares: Vec<f32> = (0..x.len() / 32).map(|block| (block % 13) as f32 * 0.7).collect();
            set_squares(&mut words, &squares);
            rig.input(&words).map_err(failed)?
        }
    };

    let position = |row: usize| row * 37 % POSITIONS;
    let blocks = source.shuffled(tokens + 2);
    let place = |row: usize| blocks[row] as usize * BLOCK_TOKENS + position(row) % BLOCK_TOKENS;
    let mut rows: Vec<[u32; 4]> = (0..tokens).map(|row| [5, 0, position(row) as u32, place(row) as u32]).collect();
    if let Some(second) = rows.get_mut(1) {
        *second = [0, NONE, NONE, NONE];
    }
    rows.resize(tokens.next_multiple_of(8), [0, NONE, NONE, NONE]);
    let list = rig.input(&rows).map_err(failed)?;
    let rope = RopeSpec { theta: 1e4, rotary_dim, scaling: RopeScaling::Default };
    let table = if rotary_dim > 0 { cos_sin_table(&rope, POSITIONS) } else { Vec::new() };
    let words: &[[u32; 4]] = bytemuck::cast_slice(&table);
    let listed = rig.input(&[&rows[..], words].concat()).map_err(failed)?;
    let table = rig.input(&table).map_err(failed)?;
    let inputs = StepHeader { row_count: tokens as u32, ..Default::default() };
    let inputs = rig.step_inputs(&inputs, &[]).map_err(failed)?;

    let unwritten = Cache { kv, kv_heads, head_dim }.unwritten(blocks.len());
    let outputs = || -> Result<[Output; 3], String> {
        let cache = || rig.output(&unwritten).map_err(failed);
        Ok([rig.output(&vec![0u32; tokens * width]).map_err(failed)?, cache()?, cache()?])
    };
    let params = MatmulParams {
        blocks: BLOCKS as u32,
        segments: matmul::segments(BLOCKS, &rig.gpu.profile),
        group_count: (width / 32) as u32,
        row_count: width as u32,
        out_stride: width as u32,
        x_stride: (columns / 4) as u32,
        norm_eps: 1e-5,
        turns_at: rows.len() as u32,
        ..Default::default()
    };
    let params = rig.params(&params).map_err(failed)?;
    let spec = |epilogue| Spec { dtype, form, normed: form == Form::Int12, epilogue, batch: Batch::Rows };
    let grid = matmul::grid(Epilogue::Store, width / 32, tokens, tile, &rig.gpu.profile);

    // Apart.
    let matrix = FusedMatrix::new(parts.clone(), Arrangement::Stacked).map_err(failed)?;
    let (_, planes) = upload(rig, &matrix, 1, 1)?.remove(0);
    let apart = outputs()?;
    let mut arguments = vec![("inputs", &inputs), ("x", &x), ("out", &apart[0].slice), ("params", &params)];
    arguments.extend(planes.iter().map(|(name, plane)| (*name, plane)));
    let product = matmul::variant(&spec(Epilogue::Store), tile, &rig.gpu.profile);
    let rope = rope_kv::Spec { heads: query_heads, kv_heads, head_dim, rotary_dim, head_norm: None, kv };
    let mut turning =
        vec![("rows", &list), ("qkv", &apart[0].slice), ("keys", &apart[1].slice), ("values", &apart[2].slice)];
    if rotary_dim > 0 {
        turning.push(("cos_sin", &table));
    }
    let dispatches = [
        Dispatch { variant: product, arguments, grid },
        Dispatch {
            variant: rope_kv::variant(&rope, &rig.gpu.profile),
            arguments: turning,
            grid: rope_kv::grid(&rope, tokens),
        },
    ];
    let expected = rig.run(&dispatches, &apart.each_ref())?;

    // Together.
    let arrangement = Arrangement::Heads { rotated: heads.rotated(), head_dim, rotary_dim };
    let matrix = FusedMatrix::new(parts, arrangement).map_err(failed)?;
    let (_, planes) = upload(rig, &matrix, 1, 1)?.remove(0);
    let fused = outputs()?;
    let [out, keys, values] = fused.each_ref().map(|output| &output.slice);
    let mut arguments =
        vec![("rows", &listed), ("x", &x), ("out", out), ("keys", keys), ("values", values), ("params", &params)];
    arguments.extend(planes.iter().map(|(name, plane)| (*name, plane)));
    let variant = matmul::variant(&spec(Epilogue::Heads(heads)), tile, &rig.gpu.profile);
    let found = rig.run(&[Dispatch { variant, arguments, grid }], &fused.each_ref())?;

    for row in (0..tokens).filter(|&row| rows[row][2] != NONE) {
        let queries = row * width..row * width + query_heads * head_dim;
        if let Some(at) = queries.clone().find(|&at| expected[0][at] != found[0][at]) {
            let [a, b] = [expected[0][at], found[0][at]].map(f32::from_bits);
            return Err(format!("row {row}, query element {}: {a} apart, {b} in one product", at - queries.start));
        }
    }
    for (cache, name) in [(1, "keys"), (2, "values")] {
        if let Some(at) = (0..unwritten.len()).find(|&at| expected[cache][at] != found[cache][at]) {
            return Err(format!(
                "{name}, word {at}: {:#x} apart, {:#x} in one product",
                expected[cache][at], found[cache][at]
            ));
        }
    }
    Ok(Found { bits: found.concat(), worst_share: 0.0 })
}
