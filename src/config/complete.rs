//! The settings that the engine runs on: checked against each other and against the model, once.

use super::{Activations, EngineOptions, KvDtype, WarmUp, kv_bytes_per_token};
use crate::base::{BLOCK_TOKENS, DType, ceil_div};
use crate::error::{Error, Result};
use crate::model::spec::ModelSpec;
use crate::quant;
use crate::sched::{Policy, Preemption};
use std::path::PathBuf;
use std::time::Duration;

/// Where [`EngineConfig::max_model_len`] comes from, and so what to do when memory cannot hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextChoice {
    /// The user asked for this length: refuse to start without it.
    Asked,
    /// The model's own length: take what fits.
    Model,
}

/// Complete, checked settings. Nothing downstream checks them again.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// See [`EngineOptions::adapter`].
    pub adapter: Option<String>,
    /// See [`EngineOptions::max_num_seqs`]; 1 to 65,536.
    pub max_num_seqs: usize,
    /// See [`EngineOptions::max_num_batched_tokens`]; at least `max_num_seqs`.
    pub max_num_batched_tokens: usize,
    /// Longest sequence to provide for; at most the model's context.
    pub max_model_len: usize,
    /// Whether `max_model_len` may shrink to what fits.
    pub context: ContextChoice,
    /// See [`EngineOptions::num_kv_blocks`].
    pub num_kv_blocks: Option<usize>,
    /// See [`EngineOptions::memory_limit`].
    pub memory_limit: Option<u64>,
    /// See [`EngineOptions::swap_space`]; 0, or at least one block.
    pub swap_space: u64,
    /// See [`EngineOptions::gpu_memory_utilization`].
    pub gpu_memory_utilization: f32,
    /// See [`EngineOptions::kv_dtype`].
    pub kv_dtype: KvDtype,
    /// See [`EngineOptions::activations`].
    pub activations: Activations,
    /// See [`EngineOptions::quantize`].
    pub quantize: Option<DType>,
    /// See [`EngineOptions::prefix_cache`].
    pub prefix_cache: bool,
    /// See [`EngineOptions::chunked_prefill`].
    pub chunked_prefill: bool,
    /// See [`EngineOptions::long_prefill_token_threshold`].
    pub long_prefill_token_threshold: usize,
    /// See [`EngineOptions::policy`].
    pub policy: Policy,
    /// See [`EngineOptions::aging`].
    pub aging: Duration,
    /// See [`EngineOptions::max_num_partial_prefills`].
    pub max_num_partial_prefills: usize,
    /// See [`EngineOptions::max_long_partial_prefills`].
    pub max_long_partial_prefills: usize,
    /// See [`EngineOptions::watermark`].
    pub watermark: f32,
    /// See [`EngineOptions::preemption`].
    pub preemption: Preemption,
    /// See [`EngineOptions::host_cache`].
    pub host_cache: bool,
    /// See [`EngineOptions::trace`].
    pub trace: Option<PathBuf>,
    /// See [`EngineOptions::eager`].
    pub eager: bool,
    /// Submissions that may be in flight: 1 in lock step, 2 otherwise.
    pub max_in_flight: usize,
    /// See [`EngineOptions::steps_per_submit`]; 1 to [`MAX_STEPS_PER_SUBMIT`].
    pub steps_per_submit: u16,
    /// See [`EngineOptions::submit_budget`]; 1 ms to [`MAX_SUBMIT_BUDGET`].
    pub submit_budget: Duration,
    /// See [`EngineOptions::max_waiting`].
    pub max_waiting: usize,
    /// See [`EngineOptions::max_logprobs`].
    pub max_logprobs: Option<u32>,
    /// See [`EngineOptions::binding_limit`].
    pub binding_limit: Option<u64>,
    /// See [`EngineOptions::cache_dir`].
    pub cache_dir: Option<PathBuf>,
    /// See [`EngineOptions::tune`].
    pub tune: bool,
    /// See [`EngineOptions::warm_up`].
    pub warm_up: WarmUp,
    /// See [`EngineOptions::checked_shaders`].
    pub checked_shaders: bool,
    /// KV bytes of one token in all layers.
    pub kv_bytes_per_token: u64,
}

/// More decode steps per submission only delay new requests: encoding is hidden long before.
pub const MAX_STEPS_PER_SUBMIT: u16 = 64;

/// Windows resets a GPU after two seconds.
pub const MAX_SUBMIT_BUDGET: Duration = Duration::from_secs(1);

/// Slots are numbered in 16 bits of some device tables.
const MAX_SEQS: usize = 65_536;

/// Rows of one step: a dispatch has at most 65,535 workgroups in a direction, and rows come in eights.
const MAX_BATCHED_TOKENS: usize = 65_528;

impl EngineConfig {
    /// Checks `options` against each other and against the model.
    ///
    /// # Errors
    /// Names the option, its value and what contradicts it.
    pub fn new(options: EngineOptions, spec: &ModelSpec) -> Result<Self> {
        let refuse = |message: String| Err(Error::config(message));
        let (seqs, rows) = (options.max_num_seqs, options.max_num_batched_tokens);
        if seqs == 0 || seqs > MAX_SEQS {
            return refuse(format!("max_num_seqs is {seqs}, but must be between 1 and {MAX_SEQS}"));
        }
        if rows > MAX_BATCHED_TOKENS {
            return refuse(format!("max_num_batched_tokens is {rows}, but must be at most {MAX_BATCHED_TOKENS}"));
        }
        if rows < seqs {
            return refuse(format!(
                "max_num_batched_tokens is {rows}, but each of max_num_seqs = {seqs} sequences needs a row in every \
                 step; raise the first or lower the second"
            ));
        }
        let model_len = spec.max_position_embeddings;
        let (max_model_len, context) = match options.max_model_len {
            None => (model_len, ContextChoice::Model),
            Some(asked) if asked < 2 => {
                return refuse(format!("max_model_len is {asked}, but a prompt and one output token need at least 2"));
            }
            Some(asked) if asked > model_len => {
                return refuse(format!("max_model_len is {asked}, but the model's context ends at {model_len} tokens"));
            }
            Some(asked) => (asked, ContextChoice::Asked),
        };
        if !options.chunked_prefill && rows < max_model_len {
            return refuse(format!(
                "without chunked prefill a prompt runs in one step, but max_num_batched_tokens is {rows} and \
                 max_model_len is {max_model_len}; raise the first to the second, lower the second, or allow chunks"
            ));
        }
        if !options.chunked_prefill && options.long_prefill_token_threshold > 0 {
            return refuse(format!(
                "long_prefill_token_threshold is {}, which cuts prompts, but chunked prefill is off; set it to 0",
                options.long_prefill_token_threshold
            ));
        }
        if let Some(blocks) = options.num_kv_blocks {
            let needed = ceil_div(max_model_len, BLOCK_TOKENS);
            if blocks == 0 {
                return refuse("num_kv_blocks is 0, but must be at least 1".into());
            }
            if context == ContextChoice::Asked && blocks < needed {
                return refuse(format!(
                    "num_kv_blocks is {blocks}, but one sequence of max_model_len = {max_model_len} tokens needs \
                     {needed} blocks of {BLOCK_TOKENS}; raise the first or lower the second"
                ));
            }
        }
        let share = options.gpu_memory_utilization;
        if !(share > 0.0 && share <= 1.0) {
            return refuse(format!("gpu_memory_utilization is {share}, but must be above 0 and at most 1"));
        }
        if options.memory_limit == Some(0) {
            return refuse(
                "memory_limit is 0, but the weights alone need more; leave it out to use what is usual for the device"
                    .into(),
            );
        }
        options.kv_dtype.check(spec)?;
        let block_bytes = kv_bytes_per_token(spec, options.kv_dtype) * BLOCK_TOKENS as u64;
        if options.swap_space > 0 && options.swap_space < block_bytes {
            return refuse(format!(
                "swap_space is {} bytes, but one block of {BLOCK_TOKENS} tokens of this model takes {block_bytes}; raise it to \
                 at least that, or set it to 0",
                options.swap_space
            ));
        }
        if options.preemption == Preemption::Swap && options.swap_space == 0 {
            return refuse("preemption is swap, but swap_space is 0; give it some memory, or choose recompute".into());
        }
        let used = options.preemption != Preemption::Recompute || (options.host_cache && options.prefix_cache);
        if options.swap_space > 0 && !used {
            return refuse(format!(
                "swap_space is {} bytes, but nothing would use it: preemption is recompute and the host keeps no prefixes; \
                 choose swap or auto, allow the host's prefix cache, or set it to 0",
                options.swap_space
            ));
        }
        let steps = options.steps_per_submit;
        if steps == 0 || steps > MAX_STEPS_PER_SUBMIT {
            return refuse(format!("steps_per_submit is {steps}, but must be between 1 and {MAX_STEPS_PER_SUBMIT}"));
        }
        let budget = options.submit_budget;
        if budget < Duration::from_millis(1) || budget > MAX_SUBMIT_BUDGET {
            return refuse(format!(
                "submit_budget is {budget:?}, but must be between 1 ms and {MAX_SUBMIT_BUDGET:?}: less costs more than it \
                 spares, and drivers kill work that runs for seconds"
            ));
        }
        if options.max_waiting == 0 {
            return refuse("max_waiting is 0, so that every request would be refused; it must be at least 1".into());
        }
        if let Some(dtype) = options.quantize.filter(|dtype| !quant::encodable().any(|known| known == *dtype)) {
            let known: Vec<&str> = quant::encodable().map(DType::name).collect();
            return refuse(format!("quantize is {dtype}, but must be one of {}", known.join(", ")));
        }
        // With the model's own context and few blocks, the longest sequence is what those blocks hold.
        let fits = options.num_kv_blocks.map_or(max_model_len, |blocks| blocks.saturating_mul(BLOCK_TOKENS));
        Ok(Self {
            adapter: options.adapter,
            max_num_seqs: seqs,
            max_num_batched_tokens: rows,
            max_model_len: max_model_len.min(fits),
            context,
            num_kv_blocks: options.num_kv_blocks,
            memory_limit: options.memory_limit,
            swap_space: options.swap_space,
            gpu_memory_utilization: share,
            kv_dtype: options.kv_dtype,
            activations: options.activations,
            quantize: options.quantize,
            prefix_cache: options.prefix_cache,
            chunked_prefill: options.chunked_prefill,
            long_prefill_token_threshold: options.long_prefill_token_threshold,
            policy: options.policy,
            aging: options.aging,
            max_num_partial_prefills: options.max_num_partial_prefills,
            max_long_partial_prefills: options.max_long_partial_prefills,
            watermark: options.watermark,
            preemption: options.preemption,
            host_cache: options.host_cache,
            trace: options.trace,
            eager: options.eager,
            max_in_flight: if options.sync { 1 } else { 2 },
            steps_per_submit: steps,
            submit_budget: budget,
            max_waiting: options.max_waiting,
            max_logprobs: options.max_logprobs,
            binding_limit: options.binding_limit,
            cache_dir: options.cache_dir,
            tune: options.tune,
            warm_up: options.warm_up,
            checked_shaders: options.checked_shaders,
            kv_bytes_per_token: kv_bytes_per_token(spec, options.kv_dtype),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::spec::{AttnSpec, LayerSpec, MlpSpec, NormSpec};

    fn spec() -> ModelSpec {
        let norm = NormSpec::rms(1e-5);
        let layer = LayerSpec::pre_norm(norm, AttnSpec::plain(4, 2, 8), MlpSpec::silu_gated(64));
        ModelSpec {
            family: "llama",
            vocab_size: 512,
            hidden_size: 32,
            max_position_embeddings: 256,
            embed_scale: 1.0,
            learned_positions: false,
            layers: vec![layer.clone(), layer],
            final_norm: norm,
            tied_head: true,
            final_softcap: None,
            ropes: Vec::new(),
        }
    }

    #[test]
    fn contradictions_name_both_numbers() {
        let base = EngineOptions::default();
        let cases = [
            (EngineOptions { max_num_seqs: 0, ..base.clone() }, ["max_num_seqs is 0", "between 1"]),
            (EngineOptions { max_num_seqs: 600, ..base.clone() }, ["is 512", "max_num_seqs = 600"]),
            (EngineOptions { max_model_len: Some(257), ..base.clone() }, ["is 257", "256"]),
            (EngineOptions { max_model_len: Some(1), ..base.clone() }, ["is 1", "at least 2"]),
            (
                EngineOptions { chunked_prefill: false, max_num_batched_tokens: 100, max_num_seqs: 1, ..base.clone() },
                ["is 100", "is 256"],
            ),
            (
                EngineOptions { num_kv_blocks: Some(5), max_model_len: Some(100), ..base.clone() },
                ["num_kv_blocks is 5", "7 blocks"],
            ),
            (EngineOptions { kv_dtype: KvDtype::Q8_0, ..base.clone() }, ["is q8_0", "layer 0 have 8"]),
            (EngineOptions { gpu_memory_utilization: 1.5, ..base.clone() }, ["is 1.5", "at most 1"]),
            (EngineOptions { gpu_memory_utilization: f32::NAN, ..base.clone() }, ["is NaN", "at most 1"]),
            (EngineOptions { quantize: Some(DType::Q4_K), ..base.clone() }, ["is q4_k", "q8_0, q4_0"]),
            (EngineOptions { steps_per_submit: 0, ..base.clone() }, ["is 0", "between 1 and 64"]),
            (EngineOptions { submit_budget: Duration::ZERO, ..base.clone() }, ["is 0ns", "between 1 ms and 1s"]),
            (EngineOptions { submit_budget: Duration::from_secs(2), ..base.clone() }, ["is 2s", "between 1 ms and 1s"]),
            (EngineOptions { preemption: Preemption::Swap, ..base.clone() }, ["preemption is swap", "swap_space is 0"]),
            (
                EngineOptions { swap_space: 1 << 20, host_cache: false, ..base.clone() },
                ["nothing would use it", "set it to 0"],
            ),
            // 128 bytes a token.
            (EngineOptions { swap_space: 2047, ..base.clone() }, ["swap_space is 2047", "takes 2048"]),
            (EngineOptions { max_waiting: 0, ..base.clone() }, ["max_waiting is 0", "at least 1"]),
        ];
        for (options, parts) in cases {
            let message = EngineConfig::new(options, &spec()).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message} lacks one of {parts:?}");
        }
    }

    #[test]
    fn the_context_is_the_models_and_at_most_what_the_blocks_hold() {
        let config = EngineConfig::new(EngineOptions::default(), &spec()).unwrap();
        assert_eq!((config.max_model_len, config.context), (256, ContextChoice::Model));
        let few = EngineOptions { num_kv_blocks: Some(3), ..EngineOptions::default() };
        assert_eq!(EngineConfig::new(few, &spec()).unwrap().max_model_len, 48);
    }

    #[test]
    fn kv_bytes_count_keys_and_values_of_all_layers() {
        // 2 layers x (keys + values) x 2 heads x 8 x 2 bytes
        assert_eq!(kv_bytes_per_token(&spec(), KvDtype::F16), 128);
        assert_eq!(kv_bytes_per_token(&spec(), KvDtype::F32), 256);
        // A byte an element and two for each 32, rounded up to four for each head.
        let bytes = |head_dim| {
            let layers = vec![LayerSpec { attn: AttnSpec::plain(4, 2, head_dim), ..spec().layers.remove(0) }];
            kv_bytes_per_token(&ModelSpec { layers, ..spec() }, KvDtype::Q8_0)
        };
        assert_eq!([32, 64, 96, 128].map(bytes), [36, 68, 104, 136].map(|head| 2 * 2 * head));
    }
}
