//! What a user may set.

use super::{Activations, KvDtype, WarmUp};
use crate::base::DType;
use crate::sched::{Policy, Preemption};
use std::path::PathBuf;
use std::time::Duration;

/// Settings of an engine; each has a default that suits one desktop user. The command line has the same names.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// Part of the adapter's name (any case) or its number in `octavo doctor`; `None` takes the fastest one.
    pub adapter: Option<String>,
    /// Sequences that run at once; further ones wait.
    pub max_num_seqs: usize,
    /// Token rows in one step, prompts and decoding together.
    pub max_num_batched_tokens: usize,
    /// Longest sequence, prompt and output together. `None` takes the model's context, or less if memory is short.
    pub max_model_len: Option<usize>,
    /// KV blocks of [`BLOCK_TOKENS`](crate::base::BLOCK_TOKENS) tokens. `None` fills the memory that is left beside the weights, as far as
    /// `max_num_seqs` sequences of `max_model_len` tokens can use it.
    pub num_kv_blocks: Option<usize>,
    /// Bytes that the engine may allocate on the device. `None` counts on 8 GiB of a discrete GPU and 4 GiB elsewhere, for no
    /// portable call tells what is free, and takes less KV cache if that is too much.
    pub memory_limit: Option<u64>,
    /// Bytes of host memory for KV blocks that leave the device: of sequences that were swapped out, and of cached prefixes that
    /// had to give way. 0 is none.
    pub swap_space: u64,
    /// Share of the device's memory that the engine may use. Above 0, at most 1.
    pub gpu_memory_utilization: f32,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// How activations meet quantised weights.
    pub activations: Activations,
    /// Rounds the matrices of a full-precision model to this format while they are loaded, so that it takes as little
    /// memory as a quantised file; one of [`quant::encodable`](crate::quant::encodable). Matrices that are quantised already, norms and biases stay.
    pub quantize: Option<DType>,
    /// Keep the KV of finished requests and reuse it for prompts that begin alike.
    pub prefix_cache: bool,
    /// Split prompts over several steps and mix them with decoding. Without it, `max_num_batched_tokens` must be at
    /// least `max_model_len`.
    pub chunked_prefill: bool,
    /// Most tokens of one prompt in one step; 0 sets no limit.
    pub long_prefill_token_threshold: usize,
    /// Who runs first, and who gives way when memory is short.
    pub policy: Policy,
    /// With [`Policy::Priority`], waiting this long outweighs one level of priority.
    pub aging: Duration,
    /// Prompts that may be partly computed at once; they share a step's budget.
    pub max_num_partial_prefills: usize,
    /// Of these, prompts above `long_prefill_token_threshold`.
    pub max_long_partial_prefills: usize,
    /// Share of the KV blocks that admission leaves free while anything runs. At least 0, below 1.
    pub watermark: f32,
    /// What becomes of the KV of a request that has to give way.
    pub preemption: Preemption,
    /// Keep cached prefixes that lose their place on the device in `swap_space`.
    pub host_cache: bool,
    /// Write a [trace](crate::trace) of everything that the scheduler does to this file. It holds all prompts and answers.
    pub trace: Option<PathBuf>,
    /// Record every step afresh instead of replaying bundles. Slower; the results are the same bits.
    pub eager: bool,
    /// Wait for each submission before planning the next. Slower; for finding faults.
    pub sync: bool,
    /// Most decode steps that the device runs by itself in one submission.
    pub steps_per_submit: u16,
    /// Time that one submission shall take. Watchdogs kill work that runs for seconds (some drivers: two), a user interface on
    /// the same GPU waits behind us, and so does a request that comes. Steps in one submission, the pieces that a step is
    /// submitted in and the prompt tokens of a step all follow it; no dispatch is cut, and decoding of one token is cut into
    /// pieces but never waits. 4 ms suits a GPU that is shared with a user interface.
    pub submit_budget: Duration,
    /// Outputs that may wait for admission, `n` for a request with several; further ones are refused with [`ErrorKind::Busy`](crate::ErrorKind).
    pub max_waiting: usize,
    /// Most of the likeliest tokens whose log-probabilities a request may ask for at each place; `None` sets no limit.
    pub max_logprobs: Option<u32>,
    /// Lowers the device's limit on the bytes of one storage binding, so that small models are split as large ones
    /// are. For tests.
    pub binding_limit: Option<u64>,
    /// Where to keep what the driver compiled and what was measured on it for the next start, a few files for each adapter;
    /// `None` keeps nothing. The command line takes [`default_cache_dir`](crate::config::default_cache_dir).
    pub cache_dir: Option<PathBuf>,
    /// Measure which of the ways to run a product that all give the same bits is the fastest here, for 300 ms at the first start,
    /// and remember it in `cache_dir`; without that, nothing is measured.
    pub tune: bool,
    /// When usual steps are prepared. The command line takes [`WarmUp::Idle`].
    pub warm_up: WarmUp,
    /// Compile shaders with bounds checks. Slower; for finding faults.
    pub checked_shaders: bool,
}

/// Far below every watchdog, far above what a submission costs by itself.
pub const DEFAULT_SUBMIT_BUDGET: Duration = Duration::from_millis(100);

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            adapter: None,
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            max_model_len: None,
            num_kv_blocks: None,
            memory_limit: None,
            swap_space: 0,
            gpu_memory_utilization: 0.9,
            kv_dtype: KvDtype::F16,
            activations: Activations::Auto,
            quantize: None,
            prefix_cache: true,
            chunked_prefill: true,
            long_prefill_token_threshold: 0,
            policy: Policy::Fcfs,
            aging: Duration::from_secs(10),
            max_num_partial_prefills: 1,
            max_long_partial_prefills: 1,
            watermark: 0.0,
            preemption: Preemption::Recompute,
            host_cache: true,
            trace: None,
            eager: false,
            sync: false,
            steps_per_submit: 4,
            submit_budget: DEFAULT_SUBMIT_BUDGET,
            max_waiting: 4096,
            max_logprobs: Some(20),
            binding_limit: None,
            cache_dir: None,
            tune: true,
            warm_up: WarmUp::Load,
            checked_shaders: false,
        }
    }
}

/// The folder for caches that this system gives to programs, and ours in it; `None` where the environment names none.
/// `OCTAVO_CACHE_DIR` names another one; an empty value means none.
pub fn default_cache_dir() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    if let Some(folder) = set("OCTAVO_CACHE_DIR") {
        return Some(folder).filter(|folder| !folder.as_os_str().is_empty());
    }
    let usable = |folder: PathBuf| Some(folder).filter(|folder| folder.is_absolute());
    let folder = if cfg!(windows) {
        set("LOCALAPPDATA").and_then(usable)
    } else if cfg!(target_os = "macos") {
        set("HOME").and_then(usable).map(|home| home.join("Library/Caches"))
    } else {
        set("XDG_CACHE_HOME").and_then(usable).or_else(|| Some(set("HOME").and_then(usable)?.join(".cache")))
    };
    folder.map(|folder| folder.join("octavo"))
}
