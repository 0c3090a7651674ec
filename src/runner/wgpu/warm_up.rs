//! Compiles everything before the first request.

use super::WgpuRunner;
use crate::base::{KV_CHUNK, ceil_div};
use crate::config::{LoadProgress, LoadStage};
use crate::error::Result;
use crate::layout::Bucket;
use crate::sched::plan::StepPlan;

impl WgpuRunner {
    /// Records what precedes a submission's first step, and runs it with nothing to do.
    pub(super) fn start_update(&mut self) -> Result<()> {
        self.write_empty_inputs();
        self.update = {
            let mut recorder = std::mem::take(&mut self.recorder);
            let update = self.forward().record_update(&mut recorder);
            self.recorder = recorder;
            update?
        };
        self.gpu.run(&self.update, &self.buffers.sampled.buffer.slice(0, 16)).map(drop)
    }

    fn write_empty_inputs(&mut self) {
        self.inputs.build(&StepPlan::default(), &self.input_shape());
        self.gpu.write(self.buffers.inputs_buffer(), self.inputs.bytes());
    }

    /// Records and runs, without a single valid row, the buckets that use each pipeline: software drivers compile at the
    /// first dispatch, and no request shall wait for that.
    pub(super) fn warm_up(&mut self, progress: &mut dyn FnMut(LoadProgress)) -> Result<()> {
        // Tuning may have left a step there.
        self.write_empty_inputs();
        let slots = self.sizes.geometry.max_slots;
        let long = ceil_div(self.sizes.geometry.max_context, KV_CHUNK) > 1;
        let decode =
            |rows: usize, chunks| Bucket { rows, decode: rows, tiles: 0, samples: rows, chunks, logprobs: false };
        let mut buckets: Vec<Bucket> =
            [1, 2, 4, 8].into_iter().filter(|rows| *rows <= slots).map(|rows| decode(rows, 1)).collect();
        if long {
            buckets.push(decode(1, 2));
        }
        buckets.push(Bucket { logprobs: true, ..decode(1, 1) });
        let prompt = |rows: usize| Bucket { rows, decode: 0, tiles: 8, samples: 1, chunks: 0, logprobs: false };
        buckets.push(prompt(8));
        // Experts meet larger tiles only in larger steps.
        let most = self.sizes.geometry.max_rows;
        let mut tiles = Vec::new();
        for rows in (0..).map(|power| 8 << power).take_while(|&rows: &usize| rows < 2 * most).map(|rows| rows.min(most))
        {
            let experts = self.model.layers.iter().filter_map(|layer| layer.mlp.experts());
            let new: Vec<_> =
                experts.map(|spec| (*spec, spec.tile(rows))).filter(|seen| !tiles.contains(seen)).collect();
            if !new.is_empty() && rows > 8 {
                buckets.push(prompt(rows));
            }
            tiles.extend(new);
        }
        let total = buckets.len() as u64;
        progress(LoadProgress { stage: LoadStage::Compiling, done: 0, total });
        let mut variants = Vec::new();
        for bucket in &buckets {
            self.forward().list_variants(bucket, &mut variants)?;
        }
        self.gpu.registry.warm_up(&variants)?;
        self.gpu.registry.save();
        let results = self.buffers.sampled.buffer.slice(0, 16);
        for (done, bucket) in buckets.into_iter().enumerate() {
            progress(LoadProgress { stage: LoadStage::Compiling, done: done as u64, total });
            let bundle = self.record(&bucket)?;
            self.gpu.run(&bundle, &results)?;
            self.bundles.insert(bucket, bundle);
        }
        self.moves.warm_up(&self.gpu, self.sizes.block_count)?;
        // wgpu clears a buffer when it is first used; the KV pools have been used above, so that this is over too.
        progress(LoadProgress { stage: LoadStage::Compiling, done: total, total });
        Ok(())
    }
}
