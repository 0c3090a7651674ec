//! Many draws from one row of logits, for tests of their distribution.

use super::super::rig::{Rig, failed};
use super::{Buffers, Case};
use crate::base::TokenId;
use crate::kernels::sample::{PARTIAL_BYTES, SampleParams, Sampled, VOCAB_BLOCK};
use crate::layout::StepHeader;
use crate::layout::inputs::NONE;
use std::ops::Range;

/// What the first row of `case` draws after its own position, and what it would draw after each of `positions`, with the same tokens
/// before: its rules are applied once, and every draw reads what the first pass left of that. At most 65,534 positions.
///
/// All draws share a slot, whose state afterwards is that of any of them.
///
/// # Errors
/// The device failed, or memory around an output was written.
pub fn draws(rig: &Rig<'_>, case: &Case, positions: Range<u32>) -> Result<Vec<TokenId>, String> {
    let (row, logits) = (&case.rows[0], case.logits_of(0));
    let vocab_size = logits.len();
    let block_count = vocab_size.div_ceil(VOCAB_BLOCK);
    let positions: Vec<u32> = std::iter::once(row.position).chain(positions).collect();
    let count = positions.len();
    let entries: Vec<[u32; 4]> = (0..count as u32).map(|index| [index, 0, NONE, NONE]).collect();
    let rows: Vec<[u32; 4]> = positions.iter().map(|position| [0, 0, *position, 0]).collect();
    let mut header = StepHeader { sample_count: count as u32, ..Default::default() };
    let side = case.side(&mut header);
    let params = SampleParams {
        vocab_size: vocab_size as u32,
        processed_at: vocab_size as u32,
        block_count: block_count as u32,
        // All strides are zero.
        ..Default::default()
    };
    let unwritten = vec![f32::from_bits(u32::MAX); vocab_size];
    let buffers = Buffers {
        inputs: rig.step_inputs(&header, &entries).map_err(failed)?,
        logits: rig.output(&[logits, &unwritten].concat()).map_err(failed)?,
        rows: rig.input(&rows).map_err(failed)?,
        side: rig.input(&side).map_err(failed)?,
        params: rig.params(&params).map_err(failed)?,
        slots: rig.output(&[row.state()]).map_err(failed)?,
        partials: rig.output(&vec![u32::MAX; block_count * PARTIAL_BYTES / 4]).map_err(failed)?,
        sampled: rig.output(&vec![0u32; count * size_of::<Sampled>() / 4]).map_err(failed)?,
    };
    let dispatches = [buffers.scan(rig, vocab_size, 1), buffers.pick(rig, vocab_size, count)];
    let found = rig.run_single(&dispatches, &[&buffers.sampled, &buffers.slots, &buffers.logits])?;
    let sampled: &[Sampled] = bytemuck::cast_slice(&found[0]);
    Ok(sampled.iter().map(|sampled| sampled.token).collect())
}
