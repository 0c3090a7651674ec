//! What each kernel of a step costs: the step is timed whole, then again without one kernel at a time.
//!
//! Timestamps inside a pass cannot be trusted everywhere (lavapipe takes them without waiting for the dispatch), but the wall
//! time of many steps in one submission can. Leaving a kernel out changes the values that flow, not the work of the others.

use super::WgpuRunner;
use crate::base::{BlockId, Epoch, SeqId, SlotId};
use crate::error::Result;
use crate::gpu::Bundle;
use crate::layout::Bucket;
use crate::sampling::{SamplingParams, SamplingRow};
use crate::sched::plan::{DecodeRow, PrefillChunk, SlotInit, StepPlan, TableUpdate};
use std::time::{Duration, Instant};

/// Cost of one kernel in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelCost {
    /// Name of its dispatches.
    pub label: &'static str,
    /// Dispatches in a step.
    pub dispatches: usize,
    /// Time that the step saves without them.
    pub saved: Duration,
}

impl WgpuRunner {
    /// Times a decode step of `rows` sequences (or, with `prompt`, one chunk of so many tokens) and each kernel's part of it.
    /// Only for a runner that serves nobody: slots and KV are overwritten.
    ///
    /// # Errors
    /// The device was lost.
    pub fn profile(&mut self, rows: usize, prompt: bool, repeats: usize) -> Result<(Duration, Vec<KernelCost>)> {
        let plan = if prompt { self.prompt_plan(rows) } else { self.decode_plan(rows, 64) };
        self.inputs.build(&plan, &self.input_shape());
        let bucket = Bucket::of(&self.inputs, &self.sizes.geometry);
        let bundle = self.record(&bucket)?;
        self.gpu.write(self.buffers.inputs_buffer(), self.inputs.bytes());
        let results = self.buffers.sampled.buffer.slice(0, 16);
        self.gpu.run(&self.update, &results)?;
        let time = |bundle: &Bundle| -> Result<Duration> {
            let mut times = Vec::with_capacity(repeats);
            for _ in 0..repeats.max(1) {
                let start = Instant::now();
                self.gpu.run(bundle, &results)?;
                times.push(start.elapsed());
            }
            times.sort();
            Ok(times[times.len() / 2])
        };
        time(&bundle)?;
        let whole = time(&bundle)?;
        let mut costs = Vec::new();
        for (label, dispatches) in bundle.census() {
            let without = bundle.without(label);
            costs.push(KernelCost { label, dispatches, saved: whole.saturating_sub(time(&without)?) });
        }
        Ok((whole, costs))
    }

    fn open_slot(&self, plan: &mut StepPlan, slot: u32, first_block: u32, blocks: u32) {
        plan.new_slots.push(SlotInit {
            slot: SlotId(slot),
            seq: SeqId(slot.into()),
            sampling: SamplingRow::new(&SamplingParams::default(), 0, &[]),
            lists: None,
            prompt_len: 0,
            history_len: 0,
            position_limit: self.sizes.geometry.max_context as u32,
        });
        plan.table_updates.extend((0..blocks).map(|index| TableUpdate {
            slot: SlotId(slot),
            index,
            block: BlockId((first_block + index) % self.sizes.block_count as u32),
        }));
    }

    fn decode_plan(&self, rows: usize, position: u32) -> StepPlan {
        let mut plan = StepPlan { epoch: Epoch(0), steps: 1, ..Default::default() };
        let blocks = (position / 16 + 4).min(self.sizes.table_stride as u32);
        for slot in 0..rows as u32 {
            self.open_slot(&mut plan, slot, slot * blocks, blocks);
            plan.decode.push(DecodeRow { seq: SeqId(slot.into()), slot: SlotId(slot), position });
        }
        plan
    }

    fn prompt_plan(&self, tokens: usize) -> StepPlan {
        let mut plan = StepPlan { epoch: Epoch(0), steps: 1, ..Default::default() };
        let tokens = tokens.min(self.sizes.geometry.max_rows).min(self.sizes.geometry.max_context);
        self.open_slot(&mut plan, 0, 0, tokens.div_ceil(16) as u32);
        plan.prefill_tokens = (0..tokens as u32).map(|token| token % self.vocab_size as u32).collect();
        plan.prefill.push(PrefillChunk {
            seq: SeqId(0),
            slot: SlotId(0),
            start: 0,
            len: tokens as u32,
            last: true,
            score: false,
            next_token: None,
        });
        plan
    }
}
