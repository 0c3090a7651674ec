//! The options about model and engine that several commands share, and what they become in the library.

use crate::progress::LoadBars;
use clap::Args;
use octavo::base::DType;
use octavo::config::{Activations, EngineOptions, KvDtype, WarmUp, default_cache_dir};
use octavo::error::{Error, Result};
use octavo::llm::Llm;
use std::path::PathBuf;
use std::time::Duration;

/// Which model, and how it runs. The same names as in `EngineOptions`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// A Hugging Face folder, a .gguf file, or a hub id
    #[arg(long, short, value_name = "MODEL", help_heading = None)]
    pub model: String,
    /// GPU to use: part of its name, or its number in `octavo doctor`
    #[arg(long, value_name = "NAME|INDEX")]
    pub adapter: Option<String>,
    /// Sequences that run at once; more of them wait
    #[arg(long, value_name = "N", default_value_t = EngineOptions::default().max_num_seqs)]
    pub max_num_seqs: usize,
    /// Token rows in one step, prompts and decoding together
    #[arg(long, value_name = "N", default_value_t = EngineOptions::default().max_num_batched_tokens)]
    pub max_num_batched_tokens: usize,
    /// Longest sequence, prompt and output together [default: the model's context, or what fits]
    #[arg(long, value_name = "N")]
    pub max_model_len: Option<usize>,
    /// KV blocks of 16 tokens [default: what memory is left]
    #[arg(long, value_name = "N")]
    pub num_kv_blocks: Option<usize>,
    /// Device memory that may be used, in MiB [default: 8192 on a discrete GPU, 4096 elsewhere]
    #[arg(long, value_name = "MIB")]
    pub memory_limit: Option<u64>,
    /// Host memory for KV that leaves the device, in MiB: preempted sequences come back from there, and so do cached prompts
    /// that had to give way; 0 is none
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    pub swap_space: u64,
    /// Share of the device's memory that may be used
    #[arg(long, value_name = "SHARE", default_value_t = EngineOptions::default().gpu_memory_utilization)]
    pub gpu_memory_utilization: f32,
    /// How keys and values are stored: half precision, single precision, or in eight bits, for nearly twice the context in the
    /// same memory
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = KvDtype::ALL.map(KvDtype::name))]
    pub kv_dtype: String,
    /// How activations meet quantised weights: int12 rounds them too, which is several times as fast; auto takes what is best
    #[arg(long, value_name = "TYPE", default_value = "auto", value_parser = ["auto", "f32", "int12"])]
    pub activations: String,
    /// Round a full-precision model to this format while loading it, to take less memory
    #[arg(long, value_name = "TYPE", value_parser = QUANTIZE)]
    pub quantize: Option<String>,
    /// Compute every prompt afresh, even if an earlier one began alike
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// Run each prompt in one step; needs --max-num-batched-tokens >= --max-model-len
    #[arg(long)]
    pub no_chunked_prefill: bool,
    /// Most tokens of one prompt in one step, so that others are not held up; 0 is off
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub long_prefill_token_threshold: usize,
    /// Who runs first, and who gives way when memory is short: fcfs (in the order of arrival), priority, edf (earliest
    /// deadline), or phase-split (never prompts and decoding in one step, for comparison)
    #[arg(long, value_name = "POLICY", default_value = "fcfs", value_parser = ["fcfs", "priority", "edf", "phase-split"])]
    pub policy: String,
    /// With --policy priority: waiting this many seconds outweighs one level of priority
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub aging: f64,
    /// Prompts that may be partly computed at once
    #[arg(long, value_name = "N", default_value_t = EngineOptions::default().max_num_partial_prefills)]
    pub max_num_partial_prefills: usize,
    /// Of these, prompts above --long-prefill-token-threshold; shorter ones may pass the others
    #[arg(long, value_name = "N", default_value_t = EngineOptions::default().max_long_partial_prefills)]
    pub max_long_partial_prefills: usize,
    /// Share of the KV blocks that is kept free for running requests when another one is admitted
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub watermark: f32,
    /// What becomes of the KV of a request that has to give way: recompute, swap (to --swap-space), or auto (by measured speed)
    #[arg(long, value_name = "HOW", default_value = "recompute", value_parser = ["recompute", "swap", "auto"])]
    pub preemption: String,
    /// Do not keep evicted prompts in --swap-space
    #[arg(long)]
    pub no_host_cache: bool,
    /// Write everything that the scheduler does to this file, for `octavo trace render`, `octavo replay` and ui.perfetto.dev;
    /// it holds all prompts and answers
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Record every step afresh instead of replaying bundles (for finding faults)
    #[arg(long)]
    pub eager: bool,
    /// Wait for each submission before planning the next (for finding faults)
    #[arg(long)]
    pub sync: bool,
    /// Most decode steps in one submission
    #[arg(long, value_name = "N", default_value_t = EngineOptions::default().steps_per_submit)]
    pub steps_per_submit: u16,
    /// Most of the likeliest tokens that a request may ask for at each place; -1 is no limit
    #[arg(long, value_name = "N", default_value_t = 20, allow_negative_numbers = true)]
    pub max_logprobs: i64,
    /// Time that one submission shall take, in milliseconds; 4 suits a GPU that also draws a user interface
    #[arg(long, value_name = "MS", default_value_t = EngineOptions::default().submit_budget.as_millis() as u64)]
    pub submit_budget_ms: u64,
    /// When usual steps are prepared: before the first request (load), or all but the smallest while there is nothing else to do
    /// (idle), for an earlier first token
    #[arg(long, value_name = "WHEN", default_value = "idle", value_parser = WarmUp::ALL.map(WarmUp::name))]
    pub warm_up: String,
    /// Where to keep what the driver compiled, for the next start [default: octavo in the system's folder for caches]
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Keep nothing on disk
    #[arg(long, conflicts_with = "cache_dir")]
    pub no_cache_dir: bool,
}

const MIB: u64 = 1 << 20;

/// Formats that `--quantize` takes.
pub const QUANTIZE: [&str; 5] = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"];

/// A weight format by its name.
pub fn parse_dtype(name: &str) -> Result<DType> {
    name.parse().map_err(|()| Error::config(format!("there is no weight format called `{name}`")))
}

/// A policy or mode by the name that its type has in JSON.
fn named<T: serde::de::DeserializeOwned>(name: &str) -> Result<T> {
    serde_json::from_value(name.into()).map_err(|error| Error::config(error.to_string()))
}

impl EngineArgs {
    /// The library's options.
    pub fn options(&self) -> Result<EngineOptions> {
        let bytes = |option: &str, mib: u64| {
            mib.checked_mul(MIB).ok_or_else(|| Error::config(format!("{option} {mib} MiB is too large")))
        };
        let memory_limit = self.memory_limit.map(|mib| bytes("--memory-limit", mib)).transpose()?;
        Ok(EngineOptions {
            adapter: self.adapter.clone(),
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            num_kv_blocks: self.num_kv_blocks,
            memory_limit,
            swap_space: bytes("--swap-space", self.swap_space)?,
            gpu_memory_utilization: self.gpu_memory_utilization,
            kv_dtype: self.kv_dtype.parse::<KvDtype>()?,
            activations: self.activations.parse::<Activations>()?,
            quantize: self.quantize.as_deref().map(parse_dtype).transpose()?,
            prefix_cache: !self.no_prefix_cache,
            chunked_prefill: !self.no_chunked_prefill,
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            policy: named(&self.policy)?,
            aging: Duration::try_from_secs_f64(self.aging)
                .map_err(|error| Error::config(format!("--aging {}: {error}", self.aging)))?,
            max_num_partial_prefills: self.max_num_partial_prefills,
            max_long_partial_prefills: self.max_long_partial_prefills,
            watermark: self.watermark,
            preemption: named(&self.preemption)?,
            host_cache: !self.no_host_cache,
            trace: self.trace.clone(),
            eager: self.eager,
            sync: self.sync,
            steps_per_submit: self.steps_per_submit,
            max_logprobs: match self.max_logprobs {
                -1 => None,
                most => Some(u32::try_from(most).map_err(|_| {
                    Error::config(format!("--max-logprobs is {most}, but must be at least 0, or -1 for no limit"))
                })?),
            },
            cache_dir: match self.no_cache_dir {
                true => None,
                false => self.cache_dir.clone().or_else(default_cache_dir),
            },
            tune: std::env::var_os("OCTAVO_TUNE").is_none_or(|value| value != "0"),
            warm_up: self.warm_up.parse()?,
            submit_budget: Duration::from_millis(self.submit_budget_ms),
            ..EngineOptions::default()
        })
    }

    /// The same for a runner without an engine, which is never asked to prepare while it is idle.
    pub fn options_of_runner(&self) -> Result<EngineOptions> {
        Ok(EngineOptions { warm_up: WarmUp::Load, ..self.options()? })
    }

    /// Opens the model, with progress bars.
    pub fn open(&self) -> Result<Llm> {
        let options = self.options()?;
        let mut bars = LoadBars::new();
        Llm::open_with_progress(&self.model, options, &mut |progress| bars.show(progress))
    }
}
