//! Runs plans on a GPU: plan -> inputs -> bundle -> submission -> results, one submission late.

mod arena;
mod attention;
mod budget;
mod buffers;
mod experts;
mod forms;
mod forward;
mod limits;
mod load;
mod matrix;
mod mlp;
mod moves;
mod norms;
mod profile;
mod results;
mod tune;
mod turns;
mod warm_up;
mod work;

use self::budget::Budget;
use self::buffers::{Buffers, Sizes};
use self::forward::Forward;
use self::load::{DeviceModel, Loader, Shape, logits_stride};
use self::moves::{Moves, Moving};
pub use self::profile::{KernelCost, KernelTime, Method, StepProfile, Workload};
pub use self::tune::Tuning;
pub use self::work::Work;
use super::move_rules::MoveRules;
use super::{Capacity, Costs, ModelRunner, RunError, StepResult, Wait};
use crate::base::{BLOCK_TOKENS, Epoch, KV_CHUNK, ceil_div};
use crate::config::{EngineConfig, LoadProgress, LoadStage, RunnerInfo};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::device::ShaderMode;
use crate::gpu::memory::Slice;
use crate::gpu::readback::{Counts, Prelude, Readback, Repeat};
use crate::gpu::{AdapterChoice, Bundle, Gpu, Recorder};
use crate::kernels::matmul_units;
use crate::kernels::sample::{SampleParams, Sampled, VOCAB_BLOCK};
use crate::layout::inputs::{SampleOwner, SeqState};
use crate::layout::{Bucket, InputShape, StepInputs};
use crate::model::files::ModelFiles;
use crate::sched::plan::StepPlan;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// A model on a GPU.
pub struct WgpuRunner {
    // Fields are dropped in order: what refers to the device before the device.
    bundles: HashMap<Bucket, Bundle>,
    update: Bundle,
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
    eager: bool,
    budget: Budget,
    last_landed: Instant,
    device_micros: u64,
    gpu: Gpu,
}

/// One sequence that decodes within its first attention chunk; recorded at warm-up.
const SINGLE: Bucket = Bucket { rows: 1, decode: 1, tiles: 0, samples: 1, chunks: 1, logprobs: false };

/// A submission whose results are on their way.
struct Pending {
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
    /// Opens the device that `config` names and loads the model onto it.
    ///
    /// # Errors
    /// No adapter, too little memory, a broken file.
    pub fn load(files: &ModelFiles, config: &EngineConfig, progress: &mut dyn FnMut(LoadProgress)) -> Result<Self> {
        progress(LoadProgress { stage: LoadStage::Opening, done: 0, total: 1 });
        let choice = config.adapter.as_deref().map_or(AdapterChoice::Best, AdapterChoice::parse);
        let mode = if config.checked_shaders { ShaderMode::Checked } else { ShaderMode::Trusted };
        let gpu = Gpu::open(&choice, mode)?;
        if let Some(folder) = &config.cache_dir {
            gpu.registry.keep_in(folder, &gpu.profile);
        }
        progress(LoadProgress { stage: LoadStage::Opening, done: 1, total: 1 });
        Self::on_device(gpu, files, config, progress)
    }

    /// Loads the model onto a device that is open already.
    ///
    /// # Errors
    /// Too little memory, a broken file.
    pub fn on_device(
        gpu: Gpu,
        files: &ModelFiles,
        config: &EngineConfig,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self> {
        let mut gpu = gpu;
        // What has not run on much hardware proves itself first.
        if let Err(error) = matmul_units::check(&gpu) {
            gpu.check()?;
            log::warn!("{}: matrix units are not used, for {error}", gpu.profile.name);
            gpu.profile.matrix = None;
        }
        let spec = &files.spec;
        limits::check_shape(spec)?;
        let config = &limits::limit_context(spec, config, &gpu)?;
        let file_bytes = limits::weight_bytes(files, config.quantize);
        let mut sizes = Sizes::new(spec, config, &gpu, file_bytes)?;
        let binding_limit = gpu.profile.max_binding.min(gpu.profile.max_buffer);
        let binding_limit = binding_limit.min(config.binding_limit.unwrap_or(u64::MAX));
        let rounds = sizes.max_samples.div_ceil(sizes.logit_rows);
        let shape = Shape {
            max_model_len: sizes.geometry.max_context,
            max_rows: sizes.geometry.max_rows,
            kv: config.kv_dtype,
            logit_rows: sizes.logit_rows,
            rounds,
        };
        let mut loader = Loader::new(&gpu, files, binding_limit, config, progress);
        let model = DeviceModel::load(&mut loader, files, &shape)?;
        let mut combine = Vec::new();
        for params in forward::combine_params(ceil_div(sizes.geometry.max_context, KV_CHUNK)) {
            combine.push(loader.params(bytemuck::bytes_of(&params))?);
        }
        let mut sample = Vec::new();
        for round in 0..rounds {
            let params = SampleParams {
                vocab_size: spec.vocab_size as u32,
                logits_stride: logits_stride(spec.vocab_size) as u32,
                processed_at: (sizes.logit_rows * logits_stride(spec.vocab_size)) as u32,
                processed_stride: logits_stride(spec.vocab_size) as u32,
                block_count: spec.vocab_size.div_ceil(VOCAB_BLOCK) as u32,
                first_sample: (round * sizes.logit_rows) as u32,
                partials_stride: spec.vocab_size.div_ceil(VOCAB_BLOCK) as u32,
                reserved: 0,
            };
            sample.push(loader.params(bytemuck::bytes_of(&params))?);
        }
        loader.uploader.flush()?;
        drop(loader);
        let apart = model.layers.iter().any(|layer| layer.mlp.is_apart());
        // Where the memory was only assumed, halve the KV cache until it fits, down to one sequence of full length.
        let buffers = loop {
            let half = sizes.block_count / 2;
            match Buffers::new(&gpu, spec, config, &sizes, &model.turned, apart) {
                Err(error)
                    if error.kind() == ErrorKind::Memory
                        && config.num_kv_blocks.is_none()
                        && half * BLOCK_TOKENS >= sizes.geometry.max_context =>
                {
                    sizes.block_count = half;
                    gpu.wait_idle()?;
                    log::warn!("{error}; trying with {half} KV blocks");
                }
                outcome => break outcome?,
            }
        };
        let steps = sizes.max_steps * sizes.geometry.max_slots.next_power_of_two() * size_of::<Sampled>();
        let depth = config.max_in_flight.max(2);
        let readback = Readback::new(&gpu, depth, sizes.result_bytes().max(steps) as u64)?;
        let moves = Moves::new(&gpu, &buffers.kv, sizes.block_count, config.swap_space, depth)?;
        let tile_queries = model.layers.iter().map(|layer| layer.attention.spec.tile_queries()).min().unwrap_or(1);
        let mut runner = Self {
            bundles: HashMap::new(),
            update: Bundle::default(),
            recorder: Recorder::default(),
            readback,
            move_rules: MoveRules::new(&capacity(&sizes, spec.vocab_size, &moves)),
            moves,
            buffers,
            model,
            combine,
            sample,
            inputs: StepInputs::default(),
            side_words: Vec::new(),
            pending: VecDeque::with_capacity(config.max_in_flight),
            spare: Vec::new(),
            sizes,
            tile_queries,
            vocab_size: spec.vocab_size,
            eager: config.eager,
            budget: Budget::new(config.submit_budget),
            last_landed: Instant::now(),
            device_micros: 0,
            gpu,
        };
        runner.start_update()?;
        if let Some(folder) = config.cache_dir.as_ref().filter(|_| config.tune) {
            runner.tune_usually(folder)?;
        }
        runner.warm_up(progress)?;
        Ok(runner)
    }

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

    fn forward(&self) -> Forward<'_> {
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

    fn record(&mut self, bucket: &Bucket) -> Result<Bundle> {
        // An eager step shares nothing with earlier ones, not even bind groups.
        let mut recorder = if self.eager { Recorder::default() } else { std::mem::take(&mut self.recorder) };
        let bundle = self.forward().record_step(&mut recorder, bucket);
        self.recorder = recorder;
        bundle
    }

    fn input_shape(&self) -> InputShape {
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

    fn try_submit(&mut self, plan: &StepPlan) -> Result<()> {
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

    fn try_poll(&mut self, wait: Wait, result: &mut StepResult) -> Result<bool> {
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
