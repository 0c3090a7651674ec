//! A runner for benches that ask it directly, past engine and scheduler: of a given model, or of the stand-in.

use super::stand_in;
use crate::options::parse_dtype;
use crate::progress::LoadBars;
use octavo::config::{ContextChoice, EngineConfig, EngineOptions, KvDtype};
use octavo::engine::locate_model;
use octavo::error::Result;
use octavo::gpu::device::ShaderMode;
use octavo::gpu::{AdapterChoice, Gpu};
use octavo::model::files::ModelFiles;
use octavo::runner::wgpu::WgpuRunner;

/// Which model, and where.
#[derive(clap::Args)]
pub struct ModelArgs {
    /// A Hugging Face folder, a .gguf file, or a hub id [default: the shapes of SmolLM2-135M, without its weights]
    #[arg(long, short, value_name = "MODEL")]
    pub model: Option<String>,
    /// Without --model: the format of the matrices
    #[arg(long, value_name = "TYPE", default_value = "q4_1", conflicts_with = "model")]
    pub format: String,
    /// How keys and values are stored
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = KvDtype::ALL.map(KvDtype::name))]
    pub kv_dtype: String,
    /// GPU to use: part of its name, or its number in `octavo doctor`
    #[arg(long, value_name = "NAME|INDEX")]
    pub adapter: Option<String>,
}

impl ModelArgs {
    /// The model's files.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn open(&self) -> Result<ModelFiles> {
        match &self.model {
            Some(model) => ModelFiles::open(&locate_model(model)?),
            None => stand_in::model(parse_dtype(&self.format)?),
        }
    }

    /// The device that is asked for.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn gpu(&self) -> Result<Gpu> {
        let choice = self.adapter.as_deref().map_or(AdapterChoice::Best, AdapterChoice::parse);
        Gpu::open(&choice, ShaderMode::Trusted)
    }
}

/// Loads `files` onto `gpu` as `args` say, with room for `context` tokens and `rows` of them in a step; for fewer tokens where the
/// model ends before, or the memory.
///
/// # Errors
/// What loading a model says.
pub fn load(gpu: Gpu, files: &ModelFiles, args: &ModelArgs, context: usize, rows: usize) -> Result<WgpuRunner> {
    let options = EngineOptions {
        max_model_len: Some(context.min(files.spec.max_position_embeddings)),
        max_num_batched_tokens: rows.max(SEQUENCES),
        max_num_seqs: SEQUENCES,
        kv_dtype: args.kv_dtype.parse()?,
        ..EngineOptions::default()
    };
    let config = EngineConfig { context: ContextChoice::Model, ..EngineConfig::new(options, &files.spec)? };
    let mut bars = LoadBars::new();
    WgpuRunner::on_device(gpu, files, &config, &mut |progress| bars.show(progress))
}

/// Tokens that a measured sequence moves on by, at most.
pub const ROOM: usize = 64;

/// Sequences that these benches decode at most.
pub const SEQUENCES: usize = 16;
