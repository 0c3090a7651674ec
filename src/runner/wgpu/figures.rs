//! What a runner tells about itself: what it runs on and what it took, its counters, and what tests read from the device.

use super::load::logits_stride;
use super::{SINGLE, WgpuRunner};
use crate::config::RunnerInfo;
use crate::error::Result;
use crate::gpu::readback::Counts;
use crate::gpu::{Bundle, Gpu};
use crate::layout::inputs::SeqState;

/// Counters of a runner, for benches and for tests of what must not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerCounters {
    /// Command buffers, dispatches and encoding time so far.
    pub submitted: Counts,
    /// Time that submissions had the device, in microseconds.
    pub device_micros: u64,
    /// Buffers created.
    pub buffers: u64,
    /// Bind groups created.
    pub bind_groups: u64,
    /// Pipelines compiled.
    pub pipelines: usize,
    /// Bundles recorded.
    pub bundles: usize,
    /// Weight bytes that one decode step reads.
    pub weight_bytes_per_step: u64,
}

impl WgpuRunner {
    /// What it runs on and what it took.
    pub fn info(&self) -> RunnerInfo {
        let profile = &self.gpu.profile;
        RunnerInfo {
            adapter: profile.name.clone(),
            backend: profile.backend.clone(),
            driver: profile.driver.clone(),
            device_bytes: self.gpu.memory.live_bytes(),
            weight_bytes: self.model.weights.total,
            kv_bytes: self.buffers.kv_bytes,
            dispatches_per_step: self.bundles.get(&SINGLE).map_or(0, |bundle| bundle.dispatch_count() as u32),
        }
    }

    /// Counters so far.
    pub fn counters(&self) -> RunnerCounters {
        RunnerCounters {
            submitted: self.readback.counts(),
            device_micros: self.device_micros,
            buffers: self.gpu.memory.created_count(),
            bind_groups: self.recorder.group_count(),
            pipelines: self.gpu.registry.pipeline_count(),
            bundles: self.bundles.len(),
            weight_bytes_per_step: self.model.weights.per_step,
        }
    }

    /// Dispatches of one decode step for a single sequence, by kernel.
    pub fn census(&self) -> Vec<(&'static str, usize)> {
        self.bundles.get(&SINGLE).map(Bundle::census).unwrap_or_default()
    }

    /// Logits of the last step's first `rows` wanted rows, each `vocab_size` long; for tests. `rows` is at most what one pass
    /// holds, and nothing may be in flight.
    ///
    /// # Errors
    /// The device was lost.
    #[doc(hidden)]
    pub fn read_logits(&self, rows: usize) -> Result<Vec<Vec<f32>>> {
        let stride = logits_stride(self.vocab_size);
        let rows = rows.min(self.sizes.logit_rows);
        let slice = self.buffers.logits.buffer.slice(0, (rows * stride * 4) as u64);
        let bytes = self.gpu.run(&Bundle::default(), &slice)?;
        let floats: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
        Ok(floats.chunks(stride).map(|row| row[..self.vocab_size].to_vec()).collect())
    }

    /// Position of the next token of the first `slots` slots; for tests.
    ///
    /// # Errors
    /// The device was lost.
    #[doc(hidden)]
    pub fn slot_positions(&self, slots: usize) -> Result<Vec<u32>> {
        let slice = self.buffers.slots.buffer.slice(0, (slots * size_of::<SeqState>()) as u64);
        let states: Vec<SeqState> = bytemuck::pod_collect_to_vec(&self.gpu.run(&Bundle::default(), &slice)?);
        Ok(states.iter().map(|state| state.position).collect())
    }

    /// Lowers the number of blocks that move between host and device without a wait; for tests.
    #[doc(hidden)]
    pub fn limit_move_window(&mut self, blocks: usize) {
        self.moves.limit_window(blocks);
    }

    /// The device, for tests that break it.
    #[doc(hidden)]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}
