//! What cases of whole numbers need, and the case of `quantize`: rows as [`int12_rows`](crate::quant::int12_rows), the twin of their
//! products, and the rows that products leave for the next ones.

use super::data::{Source, Spread};
use super::rig::{Dispatch, Rig, failed};
use super::rows::wide;
use super::{Found, Outcome};
use crate::base::DType;
use crate::kernels::Form;
use crate::kernels::quantize::{self as quantize_kernel, QuantizeParams};
use crate::layout::StepHeader;
use crate::quant::int12_rows::Int12Block;
use crate::quant::{PackedBlock, format};
use crate::reference;
use crate::reference::tolerance::check_close;
use crate::weights::tensors::MatrixRef;

/// Puts a sum of squares into each block.
pub(super) fn set_squares(words: &mut [u32], squares: &[f32]) {
    for (words, &squares) in words.as_chunks_mut().0.iter_mut().zip(squares) {
        *words = Int12Block { squares, ..Int12Block::from_words(words) }.words();
    }
}

/// Whether `left` are the rows `x` times `weight`, with the sums of their squares.
pub(super) fn check_left(x: &[f32], weight: &[f32], left: &[u32]) -> Result<(), String> {
    let weighted: Vec<f64> = x.iter().zip(weight.iter().cycle()).map(|(&x, &w)| f64::from(x) * f64::from(w)).collect();
    reference::quantize::check_left_row(left, &weighted, &vec![0.0; x.len()])?;
    for (index, (x, words)) in x.chunks(32).zip(left.as_chunks().0).enumerate() {
        let squares: Vec<f64> = x.iter().map(|&x| f64::from(x) * f64::from(x)).collect();
        let sum = squares.iter().sum::<f64>();
        check_close(&[Int12Block::from_words(words).squares], &[sum], &[sum], 16)
            .map_err(|error| format!("squares of block {index}: {error}"))?;
    }
    Ok(())
}

/// The rows `x` as int12: what their codes stand for, and as they stand in memory.
pub(super) fn quantized(x: &[f32]) -> (Vec<f64>, Vec<u32>) {
    let blocks = || x.as_chunks().0.iter().map(Int12Block::new);
    (blocks().flat_map(|block| block.values()).collect(), blocks().flat_map(|block| block.words()).collect())
}

/// Twin and magnitudes of a product of whole rows `x`. Products with int12 multiply codes and minima by themselves, so that
/// terms may cancel that are small together.
pub(super) fn product(part: &MatrixRef<'_>, form: Form, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let decode = |row: usize, out: &mut [f32]| part.decode_row(row, out);
    let (twin, mut magnitude) = reference::matmul::matmul(&decode, part.rows, part.columns, x);
    if form == Form::Int12 {
        let minima = |row: usize, out: &mut [f32]| decode_minima(part, row, out);
        let (_, of_minima) = reference::matmul::matmul(&minima, part.rows, part.columns, x);
        magnitude.iter_mut().zip(of_minima).for_each(|(magnitude, minima)| *magnitude += 2.0 * minima);
    }
    (twin, magnitude)
}

/// Rounded operations between the inputs of a product and its result: an fma for each column, or a term of at most four
/// operations for each block; then the epilogue, and segment sums.
pub(super) fn roundings(form: Form, columns: usize) -> usize {
    match form {
        Form::F32 => columns + 12,
        Form::Int12 => columns / 8 + 12,
    }
}

/// What is subtracted from or added to the scaled code of each column of a row.
fn decode_minima(part: &MatrixRef<'_>, row: usize, out: &mut [f32]) {
    let format = format(part.dtype);
    let half = |bits: u16| half::f16::from_bits(bits).to_f32();
    let mut packed = PackedBlock::default();
    let per_unit = format.unit_columns() / 32;
    for (index, out) in out.chunks_mut(32).enumerate() {
        let unit = part.row(row).chunks_exact(format.unit_bytes()).nth(index / per_unit).expect("rows are whole units");
        format.repack(unit, index % per_unit, &mut packed);
        let minima = match part.dtype {
            DType::Q4_1 | DType::Q5_1 => [half(packed.min); 2],
            DType::Q4_K | DType::Q5_K => [half(packed.min) * f32::from(packed.inner[1]); 2],
            DType::Q2_K => packed.inner.map(|inner| half(packed.min) * f32::from(inner >> 4)),
            _ => [0.0; 2],
        };
        out[..16].fill(minima[0]);
        out[16..].fill(minima[1]);
    }
}

/// Rows rounded to int12, two for each token.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn quantize(rig: &Rig<'_>, tokens: usize, blocks: usize, spread: Spread) -> Outcome {
    let mut x = Source::new(36).numbers(2 * tokens * blocks * 32, spread);
    // A block of zeros, one of next to nothing, one whose codes end in ties, and two with a number that is not finite.
    x[..32].fill(0.0);
    if blocks > 2 {
        x[32..64].fill(1e-32);
        x[64..96].iter_mut().enumerate().for_each(|(column, x)| *x = column as f32 + 1096.5);
        x[64] = 2047.0;
        x[95] = -2047.0;
        x[100] = f32::NAN;
        x[130] = f32::INFINITY;
    }
    let inputs =
        rig.step_inputs(&StepHeader { row_count: tokens as u32, ..Default::default() }, &[]).map_err(failed)?;
    let x_slice = rig.input(&x).map_err(failed)?;
    let params = QuantizeParams { blocks: blocks as u32, rows_per_token: 2, reserved: [0; 2] };
    let params = rig.params(&params).map_err(failed)?;
    let output = rig.output(&vec![u32::MAX; x.len() / 2]).map_err(failed)?;
    let dispatch = Dispatch {
        variant: quantize_kernel::variant(&rig.gpu.profile),
        arguments: vec![("inputs", &inputs), ("x", &x_slice), ("result", &output.slice), ("params", &params)],
        grid: quantize_kernel::grid(blocks, 2 * tokens + 2, &rig.gpu.profile),
    };
    let found = rig.run(&[dispatch], &[&output])?.remove(0);
    reference::quantize::check_row(&found, &wide(&x), &vec![0.0; x.len()])?;
    Ok(Found { bits: found, worst_share: 0.0 })
}
