//! Cases of the kernels that work row by row: `act_mul`, `rope_kv`, and what activations may cost.

use super::cache::{Cache, UNWRITTEN};
use super::data::{Source, Spread};
use super::rig::{Dispatch, Rig, failed, floats};
use super::{Found, Outcome};
use crate::base::BLOCK_TOKENS;
use crate::kernels::KvDtype;
use crate::kernels::act_mul::{self as act_mul_kernel, ActMulParams};
use crate::kernels::rope_kv as rope_kernel;
use crate::layout::StepHeader;
use crate::layout::inputs::NONE;
use crate::model::rope::cos_sin_table;
use crate::model::spec::{Activation, AttnSpec, NormSpec, QkNorm, RopeScaling, RopeSpec};
use crate::reference;
use crate::reference::tolerance::{bound, check_close};

/// How far `activation(x)` may be off, in the sense of [`bound`], when x is off by its magnitude. Both activations are x times the
/// sigmoid of some u; their slopes are below 1.13; `exp` may be off by 3 + 2 |u| units (Vulkan, appendix on precision), and u
/// itself by a few; and the kernels clamp the exponent at 80, which leaves a trace of e^-80.
pub fn activated_magnitude(activation: Activation, x: &[f64], magnitude: &[f64]) -> Vec<f64> {
    let one = |(&x, &magnitude): (&f64, &f64)| {
        let (u, units) = match activation {
            Activation::Silu => (x, 2.0),
            Activation::GeluTanh => (2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3)), 6.0),
        };
        let share = 1.0 / (1.0 + (-u).exp());
        let slack = share * (1.0 - share);
        // Beyond f64's exponent the product is of zero and infinity.
        let exp_error = if slack > 0.0 { x.abs() * slack * (3.0 + units * u.abs()) } else { 0.0 };
        1.13 * magnitude + exp_error + x.abs() * (-80f64).exp() / bound(1.0, 1)
    };
    x.iter().zip(magnitude).map(one).collect()
}

/// The same for `activation(gate) * up`.
pub fn gated_magnitude(
    activation: Activation,
    gate: &[f64],
    gate_magnitude: &[f64],
    up: &[f64],
    up_magnitude: &[f64],
) -> Vec<f64> {
    let activated = activated_magnitude(activation, gate, gate_magnitude);
    let one = |index: usize| {
        let factor = reference::act_mul::activate(activation, gate[index]).abs();
        activated[index] * up[index].abs() + factor * up_magnitude[index]
    };
    (0..gate.len()).map(one).collect()
}

pub(super) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// The gated activation for gates and ups up to 1e4, with two rows for each token.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn act_mul(rig: &Rig<'_>, activation: Activation, tokens: usize, width: usize) -> Outcome {
    let mut source = Source::new(32);
    let rows = 2 * tokens;
    let mut gate = source.numbers(rows * width, Spread::Heavy);
    let mut up = source.numbers(rows * width, Spread::Heavy);
    gate[..7].copy_from_slice(&[1e4, -1e4, 0.0, -0.0, 88.0, -88.0, -104.0]);
    up[..7].copy_from_slice(&[1e4, 1e4, 1.0, 1.0, -1e4, 1e4, -1e4]);
    let inputs =
        rig.step_inputs(&StepHeader { row_count: tokens as u32, ..Default::default() }, &[]).map_err(failed)?;
    let gate_slice = rig.input(&gate).map_err(failed)?;
    let up_slice = rig.input(&up).map_err(failed)?;
    let params =
        rig.params(&ActMulParams { width: width as u32 / 4, rows_per_token: 2, reserved: [0; 2] }).map_err(failed)?;
    let output = rig.output(&vec![f32::NAN; rows * width]).map_err(failed)?;
    let dispatch = Dispatch {
        variant: act_mul_kernel::variant(activation, &rig.gpu.profile),
        arguments: vec![
            ("inputs", &inputs),
            ("gate", &gate_slice),
            ("up", &up_slice),
            ("out", &output.slice),
            ("params", &params),
        ],
        grid: act_mul_kernel::grid(width, rows + 2, &rig.gpu.profile),
    };
    let found = rig.run(&[dispatch], &[&output])?.remove(0);
    let absolute = |values: &[f32]| values.iter().map(|&value| f64::from(value).abs()).collect::<Vec<f64>>();
    let twin = reference::act_mul::gated(activation, &wide(&gate), &wide(&up));
    let magnitude = gated_magnitude(activation, &wide(&gate), &absolute(&gate), &wide(&up), &absolute(&up));
    // Exponential, sum, quotient (up to 2.5 units) and product.
    let close = check_close(&floats(&found), &twin, &magnitude, 6)?;
    Ok(Found { bits: found, worst_share: close.worst_share })
}

/// Rotation and KV write of `tokens` rows at scattered positions and blocks, the second of them padding.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn rope_kv(rig: &Rig<'_>, spec: &rope_kernel::Spec, tokens: usize) -> Outcome {
    let rope_kernel::Spec { heads, kv_heads, head_dim, rotary_dim, head_norm, kv } = *spec;
    let attn = AttnSpec {
        qk_norm: head_norm.map(|eps| QkNorm { norm: NormSpec::rms(eps), whole_row: false }),
        ..AttnSpec::plain(heads, kv_heads, head_dim)
    };
    let position = |row: usize| row * 37 % 101;
    let rope = RopeSpec { theta: 1e4, rotary_dim, scaling: RopeScaling::Default };
    let table = cos_sin_table(&rope, 101);
    let mut source = Source::new(33);
    let width = (heads + 2 * kv_heads) * head_dim;
    let qkv = source.numbers(tokens * width, Spread::Plain);
    let norms = source.numbers(2 * head_dim, Spread::Plain);
    let blocks = source.shuffled(tokens + 2);
    let place = |row: usize| blocks[row] as usize * BLOCK_TOKENS + position(row) % BLOCK_TOKENS;
    let padding = |row: usize| row == 1;
    let rows: Vec<[u32; 4]> = (0..tokens)
        .map(|row| if padding(row) { [0, NONE, NONE, NONE] } else { [5, 0, position(row) as u32, place(row) as u32] })
        .collect();

    let layout = Cache { kv, kv_heads, head_dim };
    let unwritten = layout.unwritten(blocks.len());
    let rows_slice = rig.input(&rows).map_err(failed)?;
    let table_slice = rig.input(&table).map_err(failed)?;
    let norms_slice = rig.input(&norms).map_err(failed)?;
    let out = rig.output(&qkv).map_err(failed)?;
    let [keys, values] = [rig.output(&unwritten).map_err(failed)?, rig.output(&unwritten).map_err(failed)?];
    let mut arguments =
        vec![("rows", &rows_slice), ("qkv", &out.slice), ("keys", &keys.slice), ("values", &values.slice)];
    if rotary_dim > 0 {
        arguments.push(("cos_sin", &table_slice));
    }
    if head_norm.is_some() {
        arguments.push(("head_norms", &norms_slice));
    }
    let variant = rope_kernel::variant(spec, &rig.gpu.profile);
    let dispatch = Dispatch { variant, arguments, grid: rope_kernel::grid(spec, tokens) };
    let found = rig.run(&[dispatch], &[&out, &keys, &values])?;

    let ops = if head_norm.is_some() { head_dim + 16 } else { 4 };
    let queries = floats(&found[0]);
    let (mut gpu, mut twin, mut magnitude) = (Vec::new(), Vec::new(), Vec::new());
    let mut untouched = [vec![true; unwritten.len()], vec![true; unwritten.len()]];
    for row in 0..tokens {
        let input = &qkv[row * width..][..width];
        let output = &queries[row * width..][..width];
        let kept = if padding(row) { 0 } else { heads * head_dim };
        if input[kept..].iter().zip(&output[kept..]).any(|(a, b)| a.to_bits() != b.to_bits()) {
            return Err(format!("row {row}: something that is no query was changed"));
        }
        if padding(row) {
            continue;
        }
        let wide: Vec<f64> = input.iter().map(|&value| f64::from(value)).collect();
        let angles = &table[position(row) * rotary_dim / 2..][..rotary_dim / 2];
        let (query_norm, key_norm) = norms.split_at(head_dim);
        let exact = reference::rope_kv::rope_kv(&wide, &attn, query_norm, key_norm, angles);
        gpu.extend(&output[..kept]);
        twin.extend(&exact.query);
        magnitude.extend(pair_magnitudes(&exact.query, head_dim, rotary_dim));
        for head in 0..kv_heads {
            let entry = layout.entry(place(row), head);
            let rotated = &exact.key[head * head_dim..][..head_dim];
            let plain = &exact.value[head * head_dim..][..head_dim];
            let terms = [pair_magnitudes(rotated, head_dim, rotary_dim), vec![0.0; head_dim]];
            for (cache, (exact, terms)) in [rotated, plain].into_iter().zip(terms).enumerate() {
                gpu.extend(layout.get(&found[1 + cache], entry));
                twin.extend(exact);
                magnitude
                    .extend(terms.iter().zip(layout.rounding(exact, ops)).map(|(terms, rounding)| terms + rounding));
                layout.words(entry).into_iter().for_each(|word| untouched[cache][word] = false);
            }
        }
    }
    for (cache, untouched) in untouched.iter().enumerate() {
        if untouched.iter().zip(&found[1 + cache]).any(|(&untouched, &word)| untouched && word != UNWRITTEN) {
            return Err(format!("{} were written where no row belongs", ["keys", "values"][cache]));
        }
    }
    let close = check_close(&gpu, &twin, &magnitude, ops)?;
    Ok(Found { bits: found.concat(), worst_share: close.worst_share })
}

/// A key and a value that are not finite stay so in the cache, and spread no further than their block.
///
/// # Errors
/// They are hidden, or others are lost with them; or the device failed.
pub fn broken_entries(rig: &Rig<'_>, kv: KvDtype, broken: f32) -> Outcome {
    const HEAD: usize = 64;
    // Of the key and of the value.
    const AT: [usize; 2] = [3, 40];
    let spec = rope_kernel::Spec { heads: 1, kv_heads: 1, head_dim: HEAD, rotary_dim: 0, head_norm: None, kv };
    let mut qkv = Source::new(36).numbers(3 * HEAD, Spread::Plain);
    AT.iter().enumerate().for_each(|(index, at)| qkv[(1 + index) * HEAD + at] = broken);
    let layout = Cache { kv, kv_heads: 1, head_dim: HEAD };
    let rows_slice = rig.input(&[[5u32, 0, 2, 2]]).map_err(failed)?;
    let qkv = rig.input(&qkv).map_err(failed)?;
    let [keys, values] =
        [rig.output(&layout.unwritten(1)).map_err(failed)?, rig.output(&layout.unwritten(1)).map_err(failed)?];
    let arguments = vec![("rows", &rows_slice), ("qkv", &qkv), ("keys", &keys.slice), ("values", &values.slice)];
    let dispatch = Dispatch {
        variant: rope_kernel::variant(&spec, &rig.gpu.profile),
        arguments,
        grid: rope_kernel::grid(&spec, 1),
    };
    let found = rig.run(&[dispatch], &[&keys, &values])?;
    for (cache, at) in found.iter().zip(AT) {
        let lost = if kv == KvDtype::Q8_0 { at / 32 * 32..at / 32 * 32 + 32 } else { at..at + 1 };
        for (element, value) in layout.get(cache, layout.entry(2, 0)).into_iter().enumerate() {
            if value.is_finite() == lost.contains(&element) {
                return Err(format!("element {element} is {value}, with {broken} at element {at}"));
            }
        }
    }
    Ok(Found { bits: found.concat(), worst_share: 0.0 })
}

/// For each element of rotated heads what its terms add up to at most: a rotation keeps the length of a pair, and the two
/// terms of one element are at most sqrt(2) times that together.
fn pair_magnitudes(rotated: &[f64], head_dim: usize, rotary_dim: usize) -> Vec<f64> {
    let half = rotary_dim / 2;
    let one = |index: usize| {
        let (head, element) = (index / head_dim * head_dim, index % head_dim);
        match element < rotary_dim {
            true => rotated[head + element % half].hypot(rotated[head + element % half + half]) * 2f64.sqrt(),
            false => rotated[index].abs(),
        }
    };
    (0..rotated.len()).map(one).collect()
}
