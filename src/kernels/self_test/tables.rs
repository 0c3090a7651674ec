//! Cases of the kernels whose results must be exact: `resolve` and `update`, which move integers, and `peak`.

use super::rig::{Dispatch, Rig, failed};
use super::{Found, Outcome};
use crate::kernels::{peak as peak_kernel, resolve as resolve_kernel, update as update_kernel};
use crate::layout::StepHeader;
use crate::layout::inputs::{NONE, SeqState};
use crate::reference;
use crate::sampling::row::KEEPS_HISTORY;
use crate::sampling::{SamplingParams, SamplingRow};
use bytemuck::Zeroable;

/// Decode rows (one of them finished), prompt rows, and padding; some slots keep their history.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn resolve(rig: &Rig<'_>) -> Outcome {
    let state = |token, position, done| SeqState { token, position, done, ..SeqState::zeroed() };
    let mut slots = [state(11, 33, 0), state(12, 5, 1), state(13, 16, 0), state(0, 0, 0)];
    for slot in [0, 1, 3] {
        slots[slot].sampling.flags = KEEPS_HISTORY;
    }
    const SIDE: usize = 40;
    // Three table entries a slot; block 100 * slot + index + 1.
    let tables: Vec<u32> = (0..12).map(|index| index / 3 * 100 + index % 3 + 1).collect();
    let entries = [
        [NONE; 4], // something else of the step
        [NONE, 0, NONE, 0],
        [NONE, 1, NONE, 0],
        [NONE, 2, NONE, 0],
        [77, 3, 15, 0],
        [78, 3, 16, 0],
    ];
    let side_stride = SIDE as u32;
    let header =
        StepHeader { row_count: 5, decode_count: 3, rows_at: 1, table_stride: 3, side_stride, ..Default::default() };
    let inputs = rig.step_inputs(&header, &entries).map_err(failed)?;
    let slots = rig.input(&slots).map_err(failed)?;
    let tables = rig.input(&tables).map_err(failed)?;
    let output = rig.output(&[[7u32; 4]; 9]).map_err(failed)?;
    let mut histories = [[9u32; SIDE]; 4];
    let side = rig.output(&histories).map_err(failed)?;
    let dispatch = Dispatch {
        variant: resolve_kernel::variant(&rig.gpu.profile),
        arguments: vec![
            ("inputs", &inputs),
            ("slots", &slots),
            ("tables", &tables),
            ("rows", &output.exact),
            ("side", &side.slice),
        ],
        // More lanes than rows, whatever the workgroup.
        grid: resolve_kernel::grid(300, &rig.gpu.profile),
    };
    let found = rig.run(&[dispatch], &[&output, &side])?;
    let idle = [0, NONE, NONE, NONE];
    let mut expected = [idle; 9];
    expected[0] = [11, 0, 33, 3 * 16 + 1];
    expected[2] = [13, 2, 16, 202 * 16];
    expected[3] = [77, 3, 15, 301 * 16 + 15];
    expected[4] = [78, 3, 16, 302 * 16];
    histories[0][33] = 11;
    (histories[3][15], histories[3][16]) = (77, 78);
    let expected: [&[u32]; 2] = [bytemuck::cast_slice(&expected), bytemuck::cast_slice(&histories)];
    exact(found.concat(), &expected.concat())
}

/// New slots and table entries, an odd number of changes, and everything else as it was.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn update(rig: &Rig<'_>) -> Outcome {
    const TABLE: u32 = 1 << 31;
    let state = SeqState {
        position_limit: 64,
        sampling: SamplingRow::new(&SamplingParams::default(), 0x1234_5678_9abc, &[2, 3]),
        ..SeqState::zeroed()
    };
    let words: &[u32] = bytemuck::cast_slice(std::slice::from_ref(&state));
    let mut changes: Vec<[u32; 2]> = (0..).zip(words).map(|(at, &word)| [words.len() as u32 + at, word]).collect();
    changes.extend([[TABLE | 4, 99], [TABLE, 98], [TABLE | 11, 97]]);
    let entries: Vec<[u32; 4]> = changes
        .chunks(2)
        .map(|pair| match *pair {
            [[a, b], [c, d]] => [a, b, c, d],
            [[a, b]] => [a, b, NONE, 0],
            _ => [NONE; 4],
        })
        .collect();
    let header = StepHeader { update_count: entries.len() as u32, table_stride: 4, ..Default::default() };
    let inputs = rig.step_inputs(&header, &entries).map_err(failed)?;
    let mut slots = vec![0xaaaa_aaaau32; 3 * words.len()];
    let mut tables = vec![0x5555_5555u32; 12];
    let slot_output = rig.output(&slots).map_err(failed)?;
    let table_output = rig.output(&tables).map_err(failed)?;
    let dispatch = Dispatch {
        variant: update_kernel::variant(&rig.gpu.profile),
        arguments: vec![("inputs", &inputs), ("slots", &slot_output.slice), ("tables", &table_output.slice)],
        grid: update_kernel::grid(),
    };
    let found = rig.run(&[dispatch], &[&slot_output, &table_output])?;
    slots[words.len()..2 * words.len()].copy_from_slice(words);
    (tables[4], tables[0], tables[11]) = (99, 98, 97);
    exact(found.concat(), &[slots, tables].concat())
}

/// The loops that measure a device: short ones.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn peak(rig: &Rig<'_>, mode: peak_kernel::Mode) -> Outcome {
    use peak_kernel::Mode;
    const WORKGROUPS: usize = 3;
    let length = peak_kernel::Length { rounds: 3, unroll: 2 };
    let steps = length.rounds * length.unroll;
    let variant = peak_kernel::variant(mode, length, &rig.gpu.profile);
    let lanes = variant.workgroup[0] as usize;
    let mut source: Vec<[u32; 4]> =
        (0..(WORKGROUPS * lanes) as u32 * steps).map(|i| [i, i * 7919, u32::MAX - i, i << 20]).collect();
    source[0] = peak_kernel::FACTORS;
    let input = rig.input(&source).map_err(failed)?;
    let output = rig.output(&vec![[0u32; 4]; WORKGROUPS * lanes]).map_err(failed)?;
    let arguments = vec![("source", &input), ("out", &output.slice)];
    let dispatch = Dispatch { variant, arguments, grid: [WORKGROUPS as u32, 1, 1] };
    let found = rig.run(&[dispatch], &[&output])?.remove(0);
    let twin = (0..WORKGROUPS * lanes).map(|at| match mode {
        Mode::MultiplyAdd => reference::peak::multiply_add(at as u32, steps),
        Mode::Dot => reference::peak::dot(at as u32, peak_kernel::FACTORS[2], steps),
        Mode::Read => {
            let first = at / lanes * lanes * steps as usize + at % lanes;
            reference::peak::read(&source, first, lanes, steps as usize)
        }
    });
    exact(found, twin.collect::<Vec<_>>().as_flattened())
}

fn exact(found: Vec<u32>, expected: &[u32]) -> Outcome {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        Some(at) => Err(format!("word {at} is {:#x}, not {:#x}", found[at], expected[at])),
        None => Ok(Found { bits: found, worst_share: 0.0 }),
    }
}
