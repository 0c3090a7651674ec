//! What the engine thread runs by, independent of any device.

use crate::base::TokenId;
use crate::config::{ContextChoice, DEFAULT_SUBMIT_BUDGET, EngineConfig};
use crate::error::{Error, Result};
use crate::runner::{Capacity, ModelRunner};
use crate::sampling::guide::GuideCompiler;
use crate::sched::SchedulerConfig;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Makes a new runner after the device was lost. Called on the engine thread.
pub type RunnerFactory = Box<dyn FnMut() -> Result<Box<dyn ModelRunner>> + Send>;

/// Settings of an [`Engine`](super::Engine).
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Limits of steps and batches.
    pub scheduler: SchedulerConfig,
    /// Tokens that end every output unless the request ignores them.
    pub end_tokens: Vec<TokenId>,
    /// Requests that may wait for admission.
    pub max_waiting: usize,
    /// Most of the likeliest tokens that a request may ask for at each place; `None` sets no limit.
    pub max_logprobs: Option<u32>,
    /// What to do when the device is lost.
    pub rebuild: RebuildPolicy,
    /// See [`EngineOptions::submit_budget`](crate::config::EngineOptions::submit_budget).
    pub submit_budget: Duration,
    /// How long shutting down waits for what is on the device.
    pub shutdown_deadline: Duration,
    /// How long a submission may take before the device counts as lost.
    pub stall_deadline: Duration,
    /// Where to write a [trace](crate::trace) of everything that the scheduler does.
    pub trace: Option<PathBuf>,
    /// Makes the guides of requests with a [constraint](crate::sampling::Constraint); without it they are refused.
    pub guides: Option<Arc<dyn GuideCompiler>>,
}

/// How often to try again after the device was lost, until a request has come to its end.
#[derive(Clone, Copy, Debug)]
pub struct RebuildPolicy {
    /// Most runners to build in a row.
    pub attempts: u32,
    /// Pause before the first; it doubles each time. A driver needs a moment after a reset.
    pub first_pause: Duration,
}

impl EngineSettings {
    /// All that a runner can do, without end tokens: prefix cache, chunks and run-ahead on.
    pub fn for_capacity(capacity: Capacity) -> Self {
        Self {
            scheduler: SchedulerConfig::for_capacity(&capacity),
            end_tokens: Vec::new(),
            max_waiting: 4096,
            max_logprobs: Some(20),
            rebuild: RebuildPolicy { attempts: 3, first_pause: Duration::from_millis(200) },
            submit_budget: DEFAULT_SUBMIT_BUDGET,
            shutdown_deadline: Duration::from_secs(5),
            // A software adapter may take minutes for a long prompt.
            stall_deadline: Duration::from_secs(600),
            trace: None,
            guides: None,
        }
    }

    /// The settings of `config` on a runner that was loaded with it.
    ///
    /// # Errors
    /// A context that was asked for does not fit.
    pub fn new(config: &EngineConfig, capacity: Capacity, end_tokens: Vec<TokenId>) -> Result<Self> {
        let fits = capacity.max_model_len as usize;
        if config.context == ContextChoice::Asked && fits < config.max_model_len {
            return Err(Error::memory(format!(
                "max_model_len is {}, but the memory holds a context of {fits} tokens; lower it, allow more memory, or \
                 store keys and values as f16",
                config.max_model_len
            )));
        }
        let mut settings = Self::for_capacity(capacity);
        settings.scheduler = SchedulerConfig {
            max_num_seqs: config.max_num_seqs.min(settings.scheduler.max_num_seqs),
            max_num_batched_tokens: config.max_num_batched_tokens.min(settings.scheduler.max_num_batched_tokens),
            max_model_len: config.max_model_len.min(fits),
            long_prefill_token_threshold: config.long_prefill_token_threshold,
            chunked_prefill: config.chunked_prefill,
            prefix_cache: config.prefix_cache,
            max_steps: config.steps_per_submit.min(capacity.max_steps),
            max_in_flight: config.max_in_flight,
            policy: config.policy,
            aging_micros: config.aging.as_micros().try_into().unwrap_or(u64::MAX),
            max_num_partial_prefills: config.max_num_partial_prefills,
            max_long_partial_prefills: config.max_long_partial_prefills,
            watermark: config.watermark,
            preemption: config.preemption,
            host_cache: config.host_cache && config.prefix_cache && capacity.host_blocks > 0,
            ..settings.scheduler
        };
        settings.end_tokens = end_tokens;
        settings.submit_budget = config.submit_budget;
        settings.max_waiting = config.max_waiting;
        settings.max_logprobs = config.max_logprobs;
        settings.trace = config.trace.clone();
        Ok(settings)
    }
}
