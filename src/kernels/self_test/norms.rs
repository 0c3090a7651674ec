//! Cases of the norms of rows: `norm`, `norm_add`, `qk_norm`.

use super::data::{Source, Spread};
use super::rig::{Dispatch, Rig, failed, floats};
use super::rows::wide;
use super::{Found, Outcome};
use crate::kernels::Form;
use crate::kernels::norm::{self as norm_kernel, NormParams, Rows};
use crate::kernels::norm_add::{self as norm_add_kernel, Next, NormAddParams};
use crate::kernels::qk_norm::{self as qk_norm_kernel, QkNormParams};
use crate::layout::StepHeader;
use crate::layout::inputs::NONE;
use crate::model::spec::NormKind;
use crate::reference;
use crate::reference::tolerance::{bound, check_close};

/// Words of a row of `width` columns.
pub(super) fn row_words(form: Form, width: usize) -> usize {
    match form {
        Form::F32 => width,
        Form::Int12 => width / 2,
    }
}

/// Compares rows with their twin, and returns the largest share of a bound that was used up (0 for int12).
pub(super) fn check_rows(
    form: Form,
    found: &[u32],
    twin: &[f64],
    magnitude: &[f64],
    ops: usize,
) -> Result<f64, String> {
    if form == Form::F32 {
        return Ok(check_close(&floats(found), twin, magnitude, ops)?.worst_share);
    }
    let error: Vec<f64> = magnitude.iter().map(|&magnitude| bound(magnitude, ops)).collect();
    reference::quantize::check_row(found, twin, &error)?;
    Ok(0.0)
}

/// A norm of `tokens` rows; of wanted rows it is every second one, in reverse order.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn norm(
    rig: &Rig<'_>,
    kind: NormKind,
    [tokens, width]: [usize; 2],
    (rows, form): (Rows, Form),
    spread: Spread,
) -> Outcome {
    const EPS: f32 = 1e-5;
    let mut source = Source::new(31);
    let x = source.numbers(tokens * width, spread);
    let weight = source.numbers(width, Spread::Plain);
    let bias = source.numbers(width, Spread::Plain);
    let wanted: Vec<usize> = match rows {
        Rows::Wanted => (0..tokens).rev().step_by(2).collect(),
        Rows::All => (0..tokens).collect(),
    };
    // Sample 0 belongs to an earlier pass over wanted rows.
    let mut entries = vec![[u32::MAX; 4]];
    entries.extend(wanted.iter().map(|&row| [row as u32, 0, NONE, 0]));
    let header = StepHeader { row_count: tokens as u32, sample_count: entries.len() as u32, ..Default::default() };
    let inputs = rig.step_inputs(&header, &entries).map_err(failed)?;
    let x_slice = rig.input(&x).map_err(failed)?;
    let weight_slice = rig.input(&weight).map_err(failed)?;
    let bias_slice = rig.input(&bias).map_err(failed)?;
    let params = NormParams { width: width as u32 / 4, eps: EPS, first_sample: 1, reserved: 0 };
    let params = rig.params(&params).map_err(failed)?;
    let output = rig.output(&vec![f32::NAN; wanted.len() * row_words(form, width)]).map_err(failed)?;
    let mut arguments = vec![
        ("inputs", &inputs),
        ("x", &x_slice),
        ("weight", &weight_slice),
        ("result", &output.slice),
        ("params", &params),
    ];
    if kind == NormKind::Layer {
        arguments.push(("bias", &bias_slice));
    }
    let variant = norm_kernel::variant(kind, rows, form, &rig.gpu.profile);
    // Three rows of padding, as a bucket has them.
    let found = rig.run(&[Dispatch { variant, arguments, grid: norm_kernel::grid(wanted.len() + 3) }], &[&output])?;
    let (mut twin, mut magnitude) = (Vec::new(), Vec::new());
    for row in &wanted {
        let x = wide(&x[row * width..][..width]);
        match kind {
            NormKind::Rms => {
                let normed = reference::norm::rms_norm(&x, &weight, EPS);
                magnitude.extend(normed.iter().map(|value| value.abs()));
                twin.extend(normed);
            }
            NormKind::Layer => {
                // The mean may cancel nearly all of an element: what it was made of counts.
                let spread = x.iter().map(|x| x.abs()).sum::<f64>() / width as f64;
                let normed = reference::norm::layer_norm(&x, &weight, &bias, EPS);
                let mean = x.iter().sum::<f64>() / width as f64;
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                let scale = 1.0 / (variance + f64::from(EPS)).sqrt();
                let terms = x.iter().zip(&weight).zip(&bias);
                magnitude.extend(terms.map(|((x, &weight), &bias)| {
                    (x.abs() + spread) * scale * f64::from(weight).abs() + f64::from(bias).abs()
                }));
                twin.extend(normed);
            }
        }
    }
    let worst_share = check_rows(form, &found[0], &twin, &magnitude, width + 16)?;
    Ok(Found { bits: found.concat(), worst_share })
}

/// The norm of a sublayer's output, added to the residual stream, and the norm that follows.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn norm_add(rig: &Rig<'_>, next: Next, tokens: usize, width: usize, spread: Spread) -> Outcome {
    const EPS: [f32; 2] = [1e-5, 3e-5];
    let mut source = Source::new(34);
    let x = source.numbers(tokens * width, spread);
    let hidden = source.numbers(tokens * width, spread);
    let weights = [source.numbers(width, Spread::Plain), source.numbers(width, Spread::Plain)];
    let header = StepHeader { row_count: tokens as u32, ..Default::default() };
    let inputs = rig.step_inputs(&header, &[]).map_err(failed)?;
    let x_slice = rig.input(&x).map_err(failed)?;
    let weight_slice = rig.input(&weights[0]).map_err(failed)?;
    let next_slice = rig.input(&weights[1]).map_err(failed)?;
    let params = NormAddParams { width: width as u32 / 4, eps: EPS[0], next_eps: EPS[1], reserved: 0 };
    let params = rig.params(&params).map_err(failed)?;
    let sums = rig.output(&hidden).map_err(failed)?;
    let form = if let Next::Rms(form) = next { form } else { Form::F32 };
    let normed = rig.output(&vec![f32::NAN; tokens * row_words(form, width)]).map_err(failed)?;
    let mut arguments = vec![
        ("inputs", &inputs),
        ("x", &x_slice),
        ("weight", &weight_slice),
        ("hidden", &sums.slice),
        ("params", &params),
    ];
    if next != Next::None {
        arguments.extend([("next_weight", &next_slice), ("result", &normed.slice)]);
    }
    let variant = norm_add_kernel::variant(next, &rig.gpu.profile);
    let dispatch = Dispatch { variant, arguments, grid: norm_add_kernel::grid(tokens + 2) };
    let found = rig.run(&[dispatch], &[&sums, &normed])?;
    let (mut twins, mut magnitudes) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for (x, hidden) in x.chunks(width).zip(hidden.chunks(width)) {
        let added = reference::norm::rms_norm(&wide(x), &weights[0], EPS[0]);
        let sum: Vec<f64> = added.iter().zip(hidden).map(|(added, &hidden)| added + f64::from(hidden)).collect();
        let terms: Vec<f64> =
            added.iter().zip(hidden).map(|(added, &hidden)| added.abs() + f64::from(hidden).abs()).collect();
        let after = reference::norm::rms_norm(&sum, &weights[1], EPS[1]);
        // An element of the norm moves with its own sum, and with the length of all sums.
        let length = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>();
        let scale = 1.0 / (length(&sum) / width as f64 + f64::from(EPS[1])).sqrt();
        let longer = (length(&terms) / (length(&sum) + width as f64 * f64::from(EPS[1]))).sqrt();
        let moved = terms.iter().zip(&weights[1]).zip(&after);
        magnitudes[1].extend(
            moved.map(|((terms, &weight), after)| terms * scale * f64::from(weight).abs() + after.abs() * longer),
        );
        magnitudes[0].extend(terms);
        twins[0].extend(sum);
        twins[1].extend(after);
    }
    let mut worst_share = check_close(&floats(&found[0]), &twins[0], &magnitudes[0], width + 18)?.worst_share;
    match next {
        Next::Rms(form) => {
            let share = check_rows(form, &found[1], &twins[1], &magnitudes[1], 2 * width + 34)?;
            worst_share = worst_share.max(share);
        }
        Next::None if floats(&found[1]).iter().any(|value| !value.is_nan()) => {
            return Err("a norm was written that nobody asked for".into());
        }
        Next::None => {}
    }
    Ok(Found { bits: found.concat(), worst_share })
}

/// The norms of all query heads and of all key heads, in place; values stay.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn qk_norm(rig: &Rig<'_>, tokens: usize, query_width: usize, key_width: usize, spread: Spread) -> Outcome {
    const EPS: f32 = 1e-5;
    let mut source = Source::new(35);
    let stride = query_width + 2 * key_width;
    let qkv = source.numbers(tokens * stride, spread);
    let weight = source.numbers(query_width + key_width, Spread::Plain);
    let header = StepHeader { row_count: tokens as u32, ..Default::default() };
    let inputs = rig.step_inputs(&header, &[]).map_err(failed)?;
    let weight_slice = rig.input(&weight).map_err(failed)?;
    let quarter = |width: usize| width as u32 / 4;
    let params = QkNormParams {
        query_width: quarter(query_width),
        key_width: quarter(key_width),
        stride: quarter(stride),
        eps: EPS,
    };
    let params = rig.params(&params).map_err(failed)?;
    let output = rig.output(&qkv).map_err(failed)?;
    let dispatch = Dispatch {
        variant: qk_norm_kernel::variant(&rig.gpu.profile),
        arguments: vec![("inputs", &inputs), ("weight", &weight_slice), ("qkv", &output.slice), ("params", &params)],
        grid: qk_norm_kernel::grid(tokens + 2),
    };
    let found = rig.run(&[dispatch], &[&output])?.remove(0);
    let mut twin = Vec::new();
    for row in qkv.chunks(stride) {
        let row = wide(row);
        let (query_weight, key_weight) = weight.split_at(query_width);
        twin.extend(reference::norm::rms_norm(&row[..query_width], query_weight, EPS));
        twin.extend(reference::norm::rms_norm(&row[query_width..][..key_width], key_weight, EPS));
        twin.extend(&row[query_width + key_width..]);
    }
    let magnitude: Vec<f64> = twin.iter().map(|value| value.abs()).collect();
    let close = check_close(&floats(&found), &twin, &magnitude, query_width.max(key_width) + 16)?;
    Ok(Found { bits: found, worst_share: close.worst_share })
}
