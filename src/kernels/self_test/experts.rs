//! Cases of a mixture of experts: `route_experts`, `group_experts`, `matmul` over experts, `combine_experts`.

use super::data::{Source, Spread};
use super::int12::{self, quantized, roundings};
use super::matrix::Planes;
use super::norms::{check_rows, row_words};
use super::rig::{Dispatch, Rig, failed, floats};
use super::rows::wide;
use super::{Found, Outcome};
use crate::base::DType;
use crate::gpu::Slice;
use crate::kernels::Form;
use crate::kernels::experts::{self as kernel, CombineExpertsParams, Spec, Sum};
use crate::kernels::matmul::{self, Batch, Epilogue, MatmulParams};
use crate::layout::StepHeader;
use crate::layout::inputs::NONE;
use crate::reference;
use crate::reference::tolerance::check_close;
use crate::weights::pack::{Arrangement, FusedMatrix};
use crate::weights::tensors::MatrixRef;
use std::ops::Range;

/// Scores of each row, spread over a few units; many are equal, so that ties decide.
fn scores(spec: &Spec, rows: usize) -> Vec<f32> {
    let mut source = Source::new(41);
    (0..rows * spec.count).map(|_| (8.0 * source.unit()).round() / 4.0).collect()
}

fn routed(spec: &Spec, scores: &[f32]) -> Vec<Vec<(usize, f64)>> {
    let wide = |row: &[f32]| row.iter().map(|&score| f64::from(score)).collect::<Vec<f64>>();
    scores.chunks(spec.count).map(|row| reference::experts::route(&wide(row), spec.chosen, spec.normalize)).collect()
}

fn header(rows: usize) -> StepHeader {
    StepHeader { row_count: rows as u32, ..Default::default() }
}

/// Dispatches from scores to routes in tiles of `tile` pairs.
fn route_dispatches<'a>(
    rig: &Rig<'_>,
    spec: &Spec,
    tile: u32,
    rows: usize,
    [inputs, scores, chosen, routes]: [&'a Slice; 4],
) -> Vec<Dispatch<'a>> {
    let profile = &rig.gpu.profile;
    let mut dispatches = vec![Dispatch {
        variant: kernel::route_variant(spec, tile, profile),
        arguments: vec![("inputs", inputs), ("scores", scores), ("chosen", chosen), ("routes", routes)],
        // Two rows of padding.
        grid: kernel::route_grid(rows + 2),
    }];
    if tile > 1 {
        dispatches.push(Dispatch {
            variant: kernel::group_variant(spec, tile, profile),
            arguments: vec![("inputs", inputs), ("chosen", chosen), ("routes", routes)],
            grid: kernel::group_grid(spec),
        });
    }
    dispatches
}

/// Choice and weights of experts, and tiles in which every pair stands once, with its expert and in order.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn route(rig: &Rig<'_>, spec: &Spec, rows: usize, tile: u32) -> Outcome {
    let scores = scores(spec, rows);
    let twin = routed(spec, &scores);
    let pairs = rows * spec.chosen;
    let inputs = rig.step_inputs(&header(rows), &[]).map_err(failed)?;
    let scores = rig.input(&scores).map_err(failed)?;
    let chosen = rig.output(&vec![[NONE, NONE]; pairs]).map_err(failed)?;
    let routes = rig.output(&vec![NONE; 1 + spec.tiles(rows, tile) * (tile as usize + 1)]).map_err(failed)?;
    let slices = [&inputs, &scores, &chosen.slice, &routes.slice];
    let found = rig.run(&route_dispatches(rig, spec, tile, rows, slices), &[&chosen, &routes])?;

    let (mut weights, mut exact) = (Vec::new(), Vec::new());
    for (pair, (found, (expert, weight))) in found[0].chunks(2).zip(twin.iter().flatten()).enumerate() {
        if found[0] as usize != *expert {
            return Err(format!("pair {pair} has expert {}, not {expert}", found[0]));
        }
        weights.push(f32::from_bits(found[1]));
        exact.push(*weight);
    }
    // Exponentials of differences below 4, their sum and a quotient.
    let close = check_close(&weights, &exact, &exact, spec.count + 32)?;
    check_tiles(&found[1], tile, &found[0])?;
    Ok(Found { bits: found[0].clone(), worst_share: close.worst_share })
}

/// Says what is wrong with the tiles of `routes`.
fn check_tiles(routes: &[u32], tile: u32, chosen: &[u32]) -> Result<(), String> {
    let width = tile as usize + 1;
    let count = routes[0] as usize;
    if 1 + count * width > routes.len() {
        return Err(format!("{count} tiles of {tile} do not fit into {} words", routes.len()));
    }
    let mut seen = vec![false; chosen.len() / 2];
    let mut last = None;
    for entry in routes[1..].chunks(width).take(count) {
        let members: Vec<u32> = entry[1..].iter().copied().take_while(|&pair| pair != NONE).collect();
        if members.is_empty() || entry[1 + members.len()..].iter().any(|&pair| pair != NONE) {
            return Err(format!("a tile is {entry:?}"));
        }
        for pair in members {
            let expert = chosen.get(2 * pair as usize).copied();
            if expert != Some(entry[0]) || std::mem::replace(&mut seen[pair as usize], true) {
                return Err(format!(
                    "pair {pair} of expert {expert:?} stands in a tile of expert {}, or twice",
                    entry[0]
                ));
            }
            // Pairs of single tiles come as they are; larger tiles are sorted by expert, then by pair.
            let place = if tile == 1 { (0, pair) } else { (entry[0], pair) };
            if last.replace(place) >= Some(place) {
                return Err(format!("pair {pair} is out of order"));
            }
        }
    }
    match seen.iter().position(|seen| !seen) {
        Some(pair) => Err(format!("pair {pair} stands in no tile")),
        None => Ok(()),
    }
}

/// Sizes of a product over experts.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Token rows.
    pub rows: usize,
    /// Outputs of an expert.
    pub outputs: usize,
    /// Blocks of 32 columns.
    pub blocks: usize,
    /// Into how many ranges of experts the matrices are cut.
    pub shards: usize,
    /// Whether all pairs of a token read the token's row, or each pair one of its own.
    pub shared_input: bool,
}

/// Products of every pair with its expert's matrix. Data depend on pair and expert alone, so that the bits can be compared between
/// tiles, shards and numbers of rows.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn product(
    rig: &Rig<'_>,
    spec: &Spec,
    (dtype, form): (DType, Form),
    epilogue: Epilogue,
    tile: u32,
    shape: &Shape,
) -> Outcome {
    let Shape { rows, outputs, shards, .. } = *shape;
    let blocks = shape.blocks.next_multiple_of(dtype.block_elements().div_ceil(32));
    let columns = 32 * blocks;
    let gated = epilogue.is_gated();
    let (arrangement, group_outputs, part_count) =
        if gated { (Arrangement::GateUp, 16, 2) } else { (Arrangement::Stacked, 32, 1) };
    let group_count = outputs.div_ceil(group_outputs);
    let file: Vec<Vec<Vec<u8>>> = (0..spec.count)
        .map(|expert| {
            let mut source = Source::new(300 + expert as u32);
            (0..part_count).map(|_| source.weights(dtype, outputs * columns, Spread::Plain)).collect()
        })
        .collect();
    let parts = |expert: usize| -> Result<Vec<MatrixRef<'_>>, String> {
        file[expert].iter().map(|bytes| MatrixRef::new(dtype, outputs, columns, bytes).map_err(failed)).collect()
    };

    let pairs = rows * spec.chosen;
    let scores = scores(spec, rows);
    let twin_routes = routed(spec, &scores);
    let inputs = rig.step_inputs(&header(rows), &[]).map_err(failed)?;
    let scores = rig.input(&scores).map_err(failed)?;
    let chosen = rig.output(&vec![[NONE, NONE]; pairs]).map_err(failed)?;
    let routes = rig.output(&vec![NONE; 1 + spec.tiles(rows, tile) * (tile as usize + 1)]).map_err(failed)?;
    let input_rows = if shape.shared_input { rows } else { pairs };
    let x = Source::new(43).numbers(input_rows * columns, Spread::Plain);
    let (x, x_slice) = match form {
        Form::F32 => (wide(&x), rig.input(&x).map_err(failed)?),
        Form::Int12 => {
            let (exact, words) = quantized(&x);
            (exact, rig.input(&words).map_err(failed)?)
        }
    };
    let left = epilogue.leaves();
    let left_form = if left { Form::Int12 } else { Form::F32 };
    let output = rig.output(&vec![f32::NAN; pairs * row_words(left_form, outputs)]).map_err(failed)?;

    let mut uploaded: Vec<(Planes, Slice)> = Vec::new();
    for shard in 0..shards {
        let experts = spec.count * shard / shards..spec.count * (shard + 1) / shards;
        let mut planes = [Vec::new(), Vec::new(), Vec::new()];
        for expert in experts.clone() {
            let fused = FusedMatrix::new(parts(expert)?, arrangement).map_err(failed)?;
            let words = fused.plane_words_per_group();
            let mut one = [words.codes, words.scales, words.bits].map(|words| vec![0; words * group_count]);
            let [codes, scales, bits] = &mut one;
            fused.pack(0..group_count, codes, scales, bits);
            planes.iter_mut().zip(one).for_each(|(all, one)| all.extend(one));
        }
        uploaded.push((
            upload(rig, planes)?,
            rig.params(&params(shape, experts, blocks, group_count, spec, rig)).map_err(failed)?,
        ));
    }
    let product_spec = matmul::Spec { dtype, form, normed: false, epilogue, batch: Batch::Experts };
    let slices = [&inputs, &scores, &chosen.slice, &routes.slice];
    let mut dispatches = route_dispatches(rig, spec, tile, rows, slices);
    for (planes, params) in &uploaded {
        let mut arguments = vec![
            ("x", &x_slice),
            (if left { "result" } else { "out" }, &output.slice),
            ("params", params),
            ("routes", &routes.slice),
        ];
        arguments.extend(planes.iter().map(|(name, plane)| (*name, plane)));
        dispatches.push(Dispatch {
            variant: matmul::variant(&product_spec, tile, &rig.gpu.profile),
            arguments,
            grid: matmul::tile_grid(epilogue, group_count, spec.tiles(rows, tile), &rig.gpu.profile),
        });
    }
    let found = rig.run(&dispatches, &[&output])?.remove(0);

    let (mut twin, mut magnitude) = (Vec::new(), Vec::new());
    for (pair, (expert, _)) in twin_routes.iter().flatten().enumerate() {
        let row = if shape.shared_input { pair / spec.chosen } else { pair };
        let x = &x[row * columns..][..columns];
        let parts = parts(*expert)?;
        let one = |part: &MatrixRef<'_>| int12::product(part, form, x);
        let (sums, terms) = one(&parts[0]);
        match epilogue {
            Epilogue::ActMul(activation) | Epilogue::ActMulInt12(activation) => {
                let (up, up_terms) = one(&parts[1]);
                magnitude.extend(super::rows::gated_magnitude(activation, &sums, &terms, &up, &up_terms));
                twin.extend(reference::act_mul::gated(activation, &sums, &up));
            }
            Epilogue::Store => {
                twin.extend(sums);
                magnitude.extend(terms);
            }
            other => return Err(format!("no case for {other:?}")),
        }
    }
    let worst_share = check_rows(left_form, &found, &twin, &magnitude, roundings(form, columns))?;
    Ok(Found { bits: found, worst_share })
}

fn upload(rig: &Rig<'_>, planes: [Vec<u32>; 3]) -> Result<Planes, String> {
    let named = ["codes", "scales", "bits"].into_iter().zip(planes).filter(|(_, plane)| !plane.is_empty());
    named.map(|(name, plane)| Ok((name, rig.input(&plane).map_err(failed)?))).collect()
}

fn params(
    shape: &Shape,
    experts: Range<usize>,
    blocks: usize,
    group_count: usize,
    spec: &Spec,
    rig: &Rig<'_>,
) -> MatmulParams {
    MatmulParams {
        blocks: blocks as u32,
        segments: matmul::segments(blocks, &rig.gpu.profile),
        group_count: group_count as u32,
        row_count: shape.outputs as u32,
        out_stride: shape.outputs as u32,
        x_stride: 8 * blocks as u32,
        first_expert: experts.start as u32,
        expert_count: experts.len() as u32,
        pairs_per_input: if shape.shared_input { spec.chosen as u32 } else { 1 },
        ..Default::default()
    }
}

/// The weighted sum of the experts' outputs.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn combine(rig: &Rig<'_>, spec: &Spec, sum: Sum, rows: usize, width: usize) -> Outcome {
    let mut source = Source::new(44);
    let pairs = rows * spec.chosen;
    let x = source.numbers(pairs * width, Spread::Heavy);
    let before = source.numbers(rows * width, Spread::Heavy);
    let weights: Vec<f32> = (0..pairs).map(|_| source.unit().abs()).collect();
    let chosen: Vec<[u32; 2]> = weights.iter().map(|weight| [0, weight.to_bits()]).collect();
    let inputs = rig.step_inputs(&header(rows), &[]).map_err(failed)?;
    let chosen = rig.input(&chosen).map_err(failed)?;
    let x_slice = rig.input(&x).map_err(failed)?;
    let params = CombineExpertsParams { width: width as u32 / 4, reserved: [0; 3] };
    let params = rig.params(&params).map_err(failed)?;
    let output = rig.output(&before).map_err(failed)?;
    let dispatch = Dispatch {
        variant: kernel::combine_variant(spec, sum, &rig.gpu.profile),
        arguments: vec![
            ("inputs", &inputs),
            ("chosen", &chosen),
            ("x", &x_slice),
            ("out", &output.slice),
            ("params", &params),
        ],
        grid: kernel::combine_grid(width, rows + 2, &rig.gpu.profile),
    };
    let found = rig.run(&[dispatch], &[&output])?.remove(0);
    let (mut twin, mut magnitude) = (Vec::new(), Vec::new());
    for (row, before) in before.chunks(width).enumerate() {
        let route: Vec<(usize, f64)> =
            weights[row * spec.chosen..][..spec.chosen].iter().map(|&weight| (0, f64::from(weight))).collect();
        let outputs: Vec<f64> =
            x[row * spec.chosen * width..][..spec.chosen * width].iter().map(|&x| f64::from(x)).collect();
        let sizes: Vec<f64> = outputs.iter().map(|value| value.abs()).collect();
        let before = before.iter().map(|&value| if sum == Sum::Added { f64::from(value) } else { 0.0 });
        let sums = reference::experts::combine(&route, &outputs, width);
        let terms = reference::experts::combine(&route, &sizes, width);
        twin.extend(sums.iter().zip(before.clone()).map(|(sum, before)| sum + before));
        magnitude.extend(terms.iter().zip(before).map(|(terms, before)| terms + before.abs()));
    }
    let close = check_close(&floats(&found), &twin, &magnitude, spec.chosen + 1)?;
    Ok(Found { bits: found, worst_share: close.worst_share })
}
