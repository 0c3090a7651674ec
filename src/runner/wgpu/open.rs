//! From files and options to a runner that is ready: device, sizes, weights, buffers, shapes of products, first steps.

use super::budget::Budget;
use super::buffers::{Buffers, Sizes};
use super::load::{DeviceModel, Loader, Shape, logits_stride};
use super::moves::Moves;
use super::warm_up::Preparation;
use super::{WgpuRunner, capacity, forward, limits, tune};
use crate::base::{BLOCK_TOKENS, KV_CHUNK, ceil_div};
use crate::config::{EngineConfig, LoadProgress, LoadStage};
use crate::error::{ErrorKind, Result};
use crate::gpu::device::ShaderMode;
use crate::gpu::readback::Readback;
use crate::gpu::{AdapterChoice, Bundle, Gpu, Recorder};
use crate::kernels::matmul_units;
use crate::kernels::sample::{SampleParams, Sampled, VOCAB_BLOCK};
use crate::layout::StepInputs;
use crate::model::files::ModelFiles;
use crate::runner::move_rules::MoveRules;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

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
            preparation: Preparation::default(),
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
            matrices: tune::matrices_of(files, config),
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
        runner.warm_up(config.warm_up, progress)?;
        Ok(runner)
    }
}
