//! Runs plans on a GPU: plan -> inputs -> bundle -> submission -> results, one submission late.

mod arena;
mod attention;
mod budget;
mod buffers;
mod experts;
mod figures;
mod forms;
mod forward;
mod limits;
mod load;
mod matrix;
mod mlp;
mod moves;
mod norms;
mod open;
mod profile;
mod results;
mod steps;
mod tune;
mod turns;
mod warm_up;
mod work;

use self::budget::Budget;
use self::buffers::{Buffers, Sizes};
pub use self::figures::RunnerCounters;
use self::load::DeviceModel;
use self::moves::Moves;
pub use self::profile::{KernelCost, KernelTime, Method, StepProfile, Workload};
use self::steps::Pending;
pub use self::tune::Tuning;
use self::warm_up::Preparation;
pub use self::work::Work;
use super::move_rules::MoveRules;
use super::{Capacity, Costs, ModelRunner, Prepared, RunError, StepResult, Wait};
use crate::error::{Error, ErrorKind};
use crate::gpu::memory::Slice;
use crate::gpu::readback::Readback;
use crate::gpu::{Bundle, Gpu, Recorder};
use crate::layout::inputs::SampleOwner;
use crate::layout::{Bucket, StepInputs};
use crate::sched::plan::StepPlan;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// A model on a GPU.
pub struct WgpuRunner {
    // Fields are dropped in order: what refers to the device before the device.
    bundles: HashMap<Bucket, Bundle>,
    update: Bundle,
    preparation: Preparation,
    recorder: Recorder,
    readback: Readback,
    moves: Moves,
    move_rules: MoveRules,
    buffers: Buffers,
    model: DeviceModel,
    combine: Vec<Slice>,
    sample: Vec<Slice>,
    inputs: StepInputs,
    /// Memory for lists and masks on their way to the device.
    side_words: Vec<u32>,
    pending: VecDeque<Pending>,
    spare: Vec<Vec<SampleOwner>>,
    sizes: Sizes,
    tile_queries: usize,
    vocab_size: usize,
    /// Whose products these are: see [`tune::matrices_of`].
    matrices: [u8; 32],
    eager: bool,
    budget: Budget,
    last_landed: Instant,
    device_micros: u64,
    gpu: Gpu,
}

impl Drop for WgpuRunner {
    /// Keeps what was compiled since the start for the next one.
    fn drop(&mut self) {
        if self.gpu.check().is_ok() {
            self.gpu.registry.save();
        }
    }
}

/// One sequence that decodes within its first attention chunk; recorded at warm-up.
const SINGLE: Bucket = Bucket { rows: 1, decode: 1, tiles: 0, samples: 1, chunks: 1, logprobs: false };

impl ModelRunner for WgpuRunner {
    fn capacity(&self) -> Capacity {
        capacity(&self.sizes, self.vocab_size, &self.moves)
    }

    fn costs(&self) -> Costs {
        Costs {
            prefill_micros_per_token: self.budget.micros_per_prompt_row().map_or(0.0, |micros| micros as f32),
            move_micros_per_block: self.moves.micros_per_block(),
        }
    }

    fn prompt_limit(&self) -> u32 {
        let dispatches = self.bundles.get(&SINGLE).map_or(0, Bundle::dispatch_count);
        self.budget.prompt_rows(dispatches).try_into().unwrap_or(u32::MAX)
    }

    fn prepare(&mut self) -> Result<Prepared, RunError> {
        self.prepare_piece().map_err(run_error)
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), RunError> {
        self.try_submit(plan).map_err(run_error)
    }

    fn poll(&mut self, wait: Wait, result: &mut StepResult) -> Result<bool, RunError> {
        self.try_poll(wait, result).map_err(run_error)
    }
}

fn capacity(sizes: &Sizes, vocab_size: usize, moves: &Moves) -> Capacity {
    Capacity {
        block_count: sizes.block_count as u32,
        slot_count: sizes.geometry.max_slots as u32,
        max_batched_tokens: sizes.geometry.max_rows as u32,
        max_model_len: sizes.geometry.max_context as u32,
        max_steps: sizes.max_steps as u16,
        vocab_size: vocab_size as u32,
        host_blocks: moves.host_blocks(),
        logprob_entries: sizes.logprob_entries as u32,
        window: sizes.window,
    }
}

fn run_error(error: Error) -> RunError {
    match error.kind() {
        ErrorKind::DeviceLost => RunError::DeviceLost(error.to_string()),
        ErrorKind::Memory => RunError::OutOfMemory(error.to_string()),
        _ => RunError::Bug(error.to_string()),
    }
}
