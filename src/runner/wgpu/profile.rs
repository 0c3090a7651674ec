//! What the kernels of a step cost: as shares of a step, and each by itself with the work that it does.
//!
//! A share comes from timestamps around each dispatch where these add up to the time on the wall, else from leaving one
//! kernel out at a time, which changes the values that flow but not the work of the others. A kernel by itself is all of its
//! dispatches in a step, one after another on the data of their layers, so that weights come from where they come from in a
//! step.

use super::WgpuRunner;
use super::work::{StepShape, Work, work};
use crate::base::{BLOCK_TOKENS, BlockId, Epoch, SeqId, SlotId};
use crate::error::Result;
use crate::gpu::memory::Slice;
use crate::gpu::{Bundle, Dispatch, Variant};
use crate::layout::Bucket;
use crate::layout::inputs::SeqState;
use crate::sampling::{SamplingParams, SamplingRow};
use crate::sched::plan::{DecodeRow, PrefillChunk, SlotInit, StepPlan, TableUpdate};
use std::time::Duration;

/// A step to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// So many sequences decode one token each, after `context` tokens.
    Decode {
        /// Sequences.
        rows: usize,
        /// Tokens before the one that is computed.
        context: usize,
    },
    /// One chunk of so many tokens at the start of a prompt.
    Prompt {
        /// Tokens.
        tokens: usize,
    },
}

/// Where the shares of a [`StepProfile`] come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The device's timestamps around each dispatch.
    Timestamps,
    /// What the step saves without the kernel.
    LeftOut,
}

/// A step by kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct StepProfile {
    /// What ran.
    pub workload: Workload,
    /// Time of the step on the wall, submission and all; the median.
    pub whole: Duration,
    /// Where the shares come from.
    pub method: Method,
    /// In order of first occurrence.
    pub kernels: Vec<KernelCost>,
}

/// Cost of one kernel in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelCost {
    /// Name of its dispatches.
    pub label: &'static str,
    /// Dispatches in a step.
    pub dispatches: usize,
    /// Its part of the step.
    pub time: Duration,
}

impl StepProfile {
    /// Seconds of the step that no kernel accounts for: submission, and gaps between dispatches. Below zero where kernels
    /// overlap or the measurement is noisy.
    pub fn unexplained_seconds(&self) -> f64 {
        self.whole.as_secs_f64() - self.kernels.iter().map(|kernel| kernel.time.as_secs_f64()).sum::<f64>()
    }
}

/// All dispatches of one variant and name in a step, by themselves.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// Name of the dispatches.
    pub label: &'static str,
    /// What runs.
    pub variant: Variant,
    /// Workgroups of one.
    pub grid: [u32; 3],
    /// Dispatches in a step.
    pub dispatches: usize,
    /// Times of all of them together, shortest first.
    pub times: Vec<Duration>,
    /// Work of all of them together, where it is worth counting.
    pub work: Option<Work>,
}

/// A step that is recorded, with its inputs on the device.
pub(super) struct Prepared {
    pub(super) bundle: Bundle,
    shape: StepShape,
    /// Slots as the step finds them.
    slots: Vec<SeqState>,
}

/// Timestamps are believed if they add up to the wall within this share of it.
const TRUSTED_SHARE: f64 = 0.15;

impl WgpuRunner {
    /// The workload as this runner can run it: what goes beyond its slots, the rows of a step or the context is left out. All
    /// measurements do so by themselves.
    pub fn fit(&self, workload: Workload) -> Workload {
        let geometry = &self.sizes.geometry;
        match workload {
            Workload::Decode { rows, context } => {
                let rows = rows.clamp(1, geometry.max_slots);
                // A block to spare each.
                let memory = (self.sizes.block_count / rows).saturating_sub(1) * BLOCK_TOKENS;
                let most = geometry.max_context.min(memory).saturating_sub(ROOM);
                Workload::Decode { rows, context: context.min(most) }
            }
            Workload::Prompt { tokens } => {
                Workload::Prompt { tokens: tokens.clamp(1, geometry.max_rows.min(geometry.max_context)) }
            }
        }
    }

    /// Times of a step, shortest first. Only for a runner that serves nobody, as all of these: slots and KV are overwritten.
    ///
    /// # Errors
    /// The device was lost.
    pub fn step_times(&mut self, workload: Workload, repeats: usize) -> Result<Vec<Duration>> {
        let step = self.prepare(workload)?;
        self.gpu.times(&step.bundle, 1)?;
        let mut times = Vec::with_capacity(repeats);
        // Each step moves its sequences on, which have room for so many.
        while times.len() < repeats.max(1) {
            self.reset(&step)?;
            times.extend(self.gpu.times(&step.bundle, (repeats - times.len()).clamp(1, ROOM))?);
        }
        times.sort();
        Ok(times)
    }

    /// A step by kernels, by the better of two methods.
    ///
    /// # Errors
    /// The device was lost.
    pub fn profile(&mut self, workload: Workload, repeats: usize) -> Result<StepProfile> {
        let workload = self.fit(workload);
        let step = &self.prepare(workload)?;
        self.gpu.times(&step.bundle, 1)?;
        let whole = self.median(step, &step.bundle, repeats)?;
        let by_stamps = self.by_timestamps(step, whole, repeats)?;
        if let Some(kernels) = by_stamps {
            return Ok(StepProfile { workload, whole, method: Method::Timestamps, kernels });
        }
        let mut kernels = Vec::new();
        for (label, dispatches) in step.bundle.census() {
            let time = whole.saturating_sub(self.median(step, &step.bundle.without(label), repeats)?);
            kernels.push(KernelCost { label, dispatches, time });
        }
        Ok(StepProfile { workload, whole, method: Method::LeftOut, kernels })
    }

    /// Every kernel of a step by itself.
    ///
    /// # Errors
    /// The device was lost.
    pub fn kernel_times(&mut self, workload: Workload, repeats: usize) -> Result<Vec<KernelTime>> {
        let step = self.prepare(workload)?;
        let mut kernels: Vec<KernelTime> = Vec::new();
        for dispatch in step.bundle.dispatches() {
            let (label, variant) = (dispatch.label, &dispatch.pipeline.variant);
            let work = work(dispatch, &step.shape);
            match kernels.iter_mut().find(|kernel| kernel.label == label && kernel.variant == *variant) {
                Some(kernel) => {
                    kernel.dispatches += 1;
                    kernel.work = kernel.work.zip(work).map(|(sum, more)| sum + more);
                }
                None => kernels.push(KernelTime {
                    label,
                    variant: variant.clone(),
                    grid: dispatch.grid,
                    dispatches: 1,
                    times: Vec::new(),
                    work,
                }),
            }
        }
        let empty = self.gpu.times(&Bundle::default(), 5)?[2];
        for kernel in &mut kernels {
            let same = |other: &Dispatch| other.label == kernel.label && other.pipeline.variant == kernel.variant;
            let alone = step.bundle.only(same);
            // Once for the driver to compile what it has not seen, and for the caches.
            self.gpu.times(&alone, 1)?;
            self.reset(&step)?;
            let times = self.gpu.times(&alone, repeats)?;
            kernel.times = times.into_iter().map(|time| time.saturating_sub(empty)).collect();
        }
        Ok(kernels)
    }

    /// Host time of encoding a step once, and its dispatches.
    ///
    /// # Errors
    /// A bug of ours.
    pub fn encode_time(&mut self, workload: Workload, repeats: usize) -> Result<(Duration, usize)> {
        let Prepared { bundle, .. } = self.prepare(workload)?;
        Ok((self.gpu.encode_time(&bundle, repeats), bundle.dispatch_count()))
    }

    fn by_timestamps(&self, step: &Prepared, whole: Duration, repeats: usize) -> Result<Option<Vec<KernelCost>>> {
        let mut runs = Vec::with_capacity(repeats);
        for _ in 0..repeats.max(1) {
            self.reset(step)?;
            let Some(times) = self.gpu.pass_times(&step.bundle)? else { return Ok(None) };
            runs.push(times);
        }
        let mut kernels: Vec<KernelCost> = Vec::new();
        for (index, dispatch) in step.bundle.dispatches().enumerate() {
            let mut times: Vec<Duration> = runs.iter().map(|run| run[index]).collect();
            times.sort();
            let time = times[times.len() / 2];
            match kernels.iter_mut().find(|kernel| kernel.label == dispatch.label) {
                Some(kernel) => {
                    kernel.dispatches += 1;
                    kernel.time += time;
                }
                None => kernels.push(KernelCost { label: dispatch.label, dispatches: 1, time }),
            }
        }
        let sum: Duration = kernels.iter().map(|kernel| kernel.time).sum();
        let off = (sum.as_secs_f64() / whole.as_secs_f64() - 1.0).abs();
        Ok((off <= TRUSTED_SHARE).then_some(kernels))
    }

    fn median(&self, step: &Prepared, bundle: &Bundle, repeats: usize) -> Result<Duration> {
        self.reset(step)?;
        let times = self.gpu.times(bundle, repeats.min(ROOM))?;
        Ok(times[times.len() / 2])
    }

    /// Records the step and puts what it reads on the device.
    pub(super) fn prepare(&mut self, workload: Workload) -> Result<Prepared> {
        let (plan, shape) = match self.fit(workload) {
            Workload::Decode { rows, context } => self.decode_plan(rows, context),
            Workload::Prompt { tokens } => self.prompt_plan(tokens, false),
        };
        self.prepare_plan(&plan, shape)
    }

    /// [`prepare`](Self::prepare) for the first tokens of a prompt, as many of `tokens` as fit, all of whose rows want logits; and
    /// how many there are.
    pub(super) fn prepare_scored(&mut self, tokens: usize) -> Result<(usize, Prepared)> {
        let tokens = match self.fit(Workload::Prompt { tokens }) {
            Workload::Prompt { tokens } | Workload::Decode { rows: tokens, .. } => tokens,
        };
        let (plan, shape) = self.prompt_plan(tokens, true);
        Ok((tokens, self.prepare_plan(&plan, shape)?))
    }

    fn prepare_plan(&mut self, plan: &StepPlan, shape: StepShape) -> Result<Prepared> {
        let vocab_size = self.vocab_size as u32;
        let openings = plan.new_slots.iter().zip(plan.decode.iter().map(|row| row.position));
        let slots = openings.map(|(init, position)| start_of(init, position, init.slot.0 % vocab_size)).collect();
        self.inputs.build(plan, &self.input_shape());
        let bucket = Bucket::of(&self.inputs, &self.sizes.geometry);
        let bundle = self.record(&bucket)?;
        self.gpu.write(self.buffers.inputs_buffer(), self.inputs.bytes());
        let step = Prepared { bundle, shape, slots };
        self.reset(&step)?;
        Ok(step)
    }

    /// Puts slots and tables back to where the step starts; each run moves its sequences on by a token.
    fn reset(&self, step: &Prepared) -> Result<()> {
        self.gpu.run(&self.update, &self.some_results())?;
        // A plan cannot open a slot in the midst of a sequence.
        self.gpu.write(&self.buffers.slots.buffer, bytemuck::cast_slice(&step.slots));
        Ok(())
    }

    fn some_results(&self) -> Slice {
        self.buffers.sampled.buffer.slice(0, 16)
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

    fn decode_plan(&self, rows: usize, context: usize) -> (StepPlan, StepShape) {
        let mut plan = StepPlan { epoch: Epoch(0), steps: 1, ..Default::default() };
        let position = context as u32;
        let blocks = (position / 16 + 4).min(self.sizes.table_stride as u32);
        for slot in 0..rows as u32 {
            self.open_slot(&mut plan, slot, slot * blocks, blocks);
            plan.decode.push(DecodeRow { seq: SeqId(slot.into()), slot: SlotId(slot), position });
        }
        (plan, StepShape::decode(rows, position as usize + 1))
    }

    fn prompt_plan(&self, tokens: usize, score: bool) -> (StepPlan, StepShape) {
        let mut plan = StepPlan { epoch: Epoch(0), steps: 1, ..Default::default() };
        self.open_slot(&mut plan, 0, 0, tokens.div_ceil(16) as u32);
        plan.prefill_tokens = (0..tokens as u32).map(|token| token % self.vocab_size as u32).collect();
        plan.prefill.push(PrefillChunk {
            seq: SeqId(0),
            slot: SlotId(0),
            start: 0,
            len: tokens as u32,
            last: true,
            score,
            next_token: None,
        });
        (plan, StepShape::prompt(tokens))
    }
}

/// The state of a slot that has come to a position. Slots get different tokens: one may be wrong where another is not.
fn start_of(init: &SlotInit, position: u32, token: u32) -> SeqState {
    SeqState {
        token,
        position,
        position_limit: init.position_limit,
        done: 0,
        prompt_len: init.prompt_len,
        reserved: [0; 3],
        sampling: init.sampling,
    }
}

/// Steps that a measured sequence may move on.
const ROOM: usize = 48;
