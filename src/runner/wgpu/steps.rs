//! Plans on their way: plan -> inputs -> bundle -> submission, and its results when they land.

use super::forward::Forward;
use super::moves::Moving;
use super::{WgpuRunner, results};
use crate::base::Epoch;
use crate::error::{Error, Result};
use crate::gpu::readback::{Prelude, Repeat};
use crate::gpu::{Bundle, Recorder};
use crate::kernels::sample::Sampled;
use crate::layout::inputs::SampleOwner;
use crate::layout::{Bucket, InputShape};
use crate::runner::{StepResult, Wait};
use crate::sched::plan::StepPlan;
use std::time::{Duration, Instant};

/// A submission whose results are on their way.
pub(super) struct Pending {
    epoch: Epoch,
    steps: usize,
    /// Samples that each step reports, padding included.
    stride: usize,
    owners: Vec<SampleOwner>,
    rows: usize,
    /// Rows that are no padding, and those of prompts among them.
    live: (usize, usize),
    moving: Moving,
}

impl WgpuRunner {
    pub(super) fn forward(&self) -> Forward<'_> {
        Forward {
            gpu: &self.gpu,
            model: &self.model,
            buffers: &self.buffers,
            sizes: &self.sizes,
            combine: &self.combine,
            sample: &self.sample,
            vocab_size: self.vocab_size,
        }
    }

    pub(super) fn record(&mut self, bucket: &Bucket) -> Result<Bundle> {
        // An eager step shares nothing with earlier ones, not even bind groups.
        let mut recorder = if self.eager { Recorder::default() } else { std::mem::take(&mut self.recorder) };
        let bundle = self.forward().record_step(&mut recorder, bucket);
        self.recorder = recorder;
        bundle
    }

    pub(super) fn input_shape(&self) -> InputShape {
        InputShape { table_stride: self.sizes.table_stride, tile_queries: self.tile_queries, side: self.sizes.side }
    }

    fn check_plan(&self, plan: &StepPlan) -> Result<()> {
        let geometry = &self.sizes.geometry;
        let fits = plan.token_count() <= geometry.max_rows
            && plan.decode.len() <= geometry.max_slots
            && usize::from(plan.steps) <= self.sizes.max_steps
            && (plan.steps <= 1 || plan.prefill.is_empty());
        match fits {
            true => Ok(()),
            false => Err(Error::bug(format!("the plan breaks the runner's limits: {plan}"))),
        }
    }

    pub(super) fn try_submit(&mut self, plan: &StepPlan) -> Result<()> {
        self.gpu.check()?;
        self.check_plan(plan)?;
        self.move_rules.check(plan).map_err(|why| Error::bug(format!("{why}, in plan {plan}")))?;
        self.inputs.build(plan, &self.input_shape());
        let entries = self.inputs.entry_count;
        if entries > self.sizes.logprob_entries || (self.inputs.wants_logprobs && plan.steps > 1) {
            return Err(Error::bug(format!("{entries} entries of log-probabilities in {} steps: {plan}", plan.steps)));
        }
        let bucket = Bucket::of(&self.inputs, &self.sizes.geometry);
        if self.eager || !self.bundles.contains_key(&bucket) {
            let bundle = self.record(&bucket)?;
            self.bundles.insert(bucket, bundle);
        }
        let bundle = self.bundles.get(&bucket).ok_or_else(|| Error::bug("a bundle vanished"))?;
        let earlier = self.pending.iter_mut().map(|pending| &mut pending.moving);
        let moving = self.moves.prepare(&self.gpu, plan, earlier)?;
        self.gpu.write(self.buffers.inputs_buffer(), self.inputs.bytes());
        let (gpu, side) = (&self.gpu, &self.buffers.side.buffer);
        let changes = self.sizes.side.changes(plan, &mut self.side_words, |at, words| {
            gpu.write_at(side, at as u64 * 4, bytemuck::cast_slice(words));
        });
        changes.map_err(|why| Error::bug(format!("{why}, in plan {plan}")))?;
        let stride = self.inputs.sample_stride();
        let result_bytes = stride * size_of::<Sampled>() + entries * size_of::<[u32; 2]>();
        let results = self.buffers.sampled.buffer.slice(0, result_bytes as u64);
        let update = (self.inputs.header.update_count > 0).then_some(&self.update);
        let steps = usize::from(plan.steps.max(1));
        let cut = self.budget.cut(bucket.rows, steps, bundle.dispatch_count());
        let repeat = Repeat { steps: steps as u32, parts: cut.parts, steps_per_submission: cut.steps as u32 };
        let moves = moving.any.then_some(self.moves.prelude());
        let prelude = Prelude { bundles: [moves, update], riders: moving.riders() };
        self.readback.submit(&self.gpu, prelude, bundle, repeat, &results)?;
        let mut owners = self.spare.pop().unwrap_or_default();
        owners.clone_from(&self.inputs.owners);
        let live = (plan.token_count(), plan.prefill_tokens.len());
        self.pending.push_back(Pending { epoch: plan.epoch, steps, stride, owners, rows: bucket.rows, live, moving });
        Ok(())
    }

    pub(super) fn try_poll(&mut self, wait: Wait, result: &mut StepResult) -> Result<bool> {
        let wait = match wait {
            Wait::No => Duration::ZERO,
            Wait::AtMost(time) => time,
        };
        let Some(landed) = self.readback.land(&self.gpu, wait)? else { return Ok(false) };
        let pending = self.pending.pop_front().ok_or_else(|| Error::bug("results without a submission"))?;
        result.clear();
        result.epoch = pending.epoch;
        // What was ahead of it in the queue is not its own time.
        let micros = landed.micros.min(self.last_landed.elapsed().as_micros() as u64);
        self.last_landed = Instant::now();
        self.device_micros += micros;
        result.micros = micros.try_into().unwrap_or(u32::MAX);
        // Moves take time that is not the rows'.
        if !pending.moving.any {
            let (live, prompt) = pending.live;
            self.budget.learn(pending.rows, live, prompt, pending.steps, micros);
        }
        self.readback.take(landed, |bytes| {
            results::deliver(bytes, pending.steps, pending.stride, &pending.owners, result);
        })?;
        self.moves.land(pending.moving)?;
        self.move_rules.report(pending.epoch);
        self.spare.push(pending.owners);
        Ok(true)
    }
}
