//! The scheduler's knobs, checked once against the runner's limits.

use crate::error::{Error, Result};
use crate::runner::Capacity;

/// Priorities are 32 bits wide, and ranks have 64.
const LONGEST_AGING: u64 = 1_800_000_000;

/// Who runs first, and who gives way when memory is short: the last in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// In the order of arrival.
    #[default]
    Fcfs,
    /// Smaller priority first, then arrival. Waiting counts: see [`SchedulerConfig::aging_micros`].
    Priority,
    /// Earliest deadline first. A request without one counts as due [`SchedulerConfig::deadline_micros`] after its arrival.
    Edf,
    /// In the order of arrival, and prompts never share a step with decoding: nano-vllm's way, for comparison.
    PhaseSplit,
}

/// What becomes of the KV of a sequence that has to give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preemption {
    /// It is dropped and computed again.
    #[default]
    Recompute,
    /// It moves to the host and back, as far as the host has room; else it is dropped.
    Swap,
    /// Whichever the measured speeds make cheaper.
    Auto,
}

/// Limits of a step and of the batch. All fields count tokens, sequences or submissions unless they say otherwise.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SchedulerConfig {
    /// Sequences that run at once.
    pub max_num_seqs: usize,
    /// Token rows of one step, prompt pieces and decode rows together.
    pub max_num_batched_tokens: usize,
    /// Longest sequence, prompt and output together.
    pub max_model_len: usize,
    /// Most prompt tokens of one sequence in a step; 0 leaves the budget as the only limit.
    pub long_prefill_token_threshold: usize,
    /// Prompts may be cut into pieces; otherwise a prompt runs whole or waits.
    pub chunked_prefill: bool,
    /// Share KV blocks of equal prefixes.
    pub prefix_cache: bool,
    /// Most decode steps in one submission.
    pub max_steps: u16,
    /// Submissions under way at once: 1 is lock step, 2 is run-ahead.
    pub max_in_flight: usize,
    /// Who runs first.
    pub policy: Policy,
    /// With [`Policy::Priority`], waiting this long outweighs one level of priority, so that nobody starves.
    pub aging_micros: u64,
    /// With [`Policy::Edf`], when a request without a deadline counts as due, after its arrival.
    pub deadline_micros: u64,
    /// Prompts that may be partly computed at once. They share a step's budget evenly.
    pub max_num_partial_prefills: usize,
    /// Of these, prompts longer than `long_prefill_token_threshold`; shorter ones may pass a long one that waits for this.
    pub max_long_partial_prefills: usize,
    /// Share of the blocks that admission leaves free while anything runs, so that decoding does not preempt at once.
    pub watermark: f32,
    /// What becomes of preempted KV.
    pub preemption: Preemption,
    /// Keep evicted prefixes on the host.
    pub host_cache: bool,
    /// Steps in a row without a new token, a sequence further along than ever or an end, after which the sequence in front is
    /// ended with an error.
    pub watchdog_steps: u32,
}

impl SchedulerConfig {
    /// All that a runner can do: chunks, prefix cache and run-ahead on, first come first served.
    pub fn for_capacity(capacity: &Capacity) -> Self {
        Self {
            max_num_seqs: (capacity.slot_count as usize).min(capacity.max_batched_tokens as usize),
            max_num_batched_tokens: capacity.max_batched_tokens as usize,
            max_model_len: capacity.max_model_len as usize,
            long_prefill_token_threshold: 0,
            chunked_prefill: true,
            prefix_cache: true,
            max_steps: capacity.max_steps,
            max_in_flight: 2,
            policy: Policy::Fcfs,
            aging_micros: 10_000_000,
            deadline_micros: 60_000_000,
            max_num_partial_prefills: 1,
            max_long_partial_prefills: 1,
            watermark: 0.0,
            preemption: Preemption::Recompute,
            host_cache: capacity.host_blocks > 0,
            watchdog_steps: 10_000,
        }
    }

    /// Refuses contradictions.
    ///
    /// # Errors
    /// Names the option, its value and what it contradicts.
    pub(super) fn validate(&self, capacity: &Capacity) -> Result<()> {
        let at_least_one = [
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("steps_per_submit", usize::from(self.max_steps)),
            ("max_in_flight", self.max_in_flight),
            ("the number of KV blocks", capacity.block_count as usize),
        ];
        for (name, value) in at_least_one {
            if value == 0 {
                return Err(Error::config(format!("{name} is 0, but must be at least 1")));
            }
        }
        let at_most = [
            ("max_num_seqs", self.max_num_seqs, "sequence slots of the runner", capacity.slot_count as usize),
            (
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                "token rows of the runner",
                capacity.max_batched_tokens as usize,
            ),
            ("max_model_len", self.max_model_len, "tokens the runner can hold", capacity.max_model_len as usize),
            (
                "steps_per_submit",
                usize::from(self.max_steps),
                "steps of the runner in one submission",
                usize::from(capacity.max_steps),
            ),
        ];
        for (name, value, what, limit) in at_most {
            if value > limit {
                return Err(Error::config(format!("{name} is {value}, above the {limit} {what}; lower it")));
            }
        }
        if self.max_model_len < 2 {
            return Err(Error::config(format!(
                "max_model_len is {}, but a prompt token and a generated token need at least 2",
                self.max_model_len
            )));
        }
        if self.max_num_batched_tokens < self.max_num_seqs {
            return Err(Error::config(format!(
                "max_num_batched_tokens is {}, below max_num_seqs {}: each running sequence needs a row; raise it",
                self.max_num_batched_tokens, self.max_num_seqs
            )));
        }
        if !self.chunked_prefill && self.max_num_batched_tokens < self.max_model_len {
            return Err(Error::config(format!(
                "without chunked prefill max_num_batched_tokens ({}) must be at least max_model_len ({}), \
                 or a long prompt could never run; raise it or leave chunked prefill on",
                self.max_num_batched_tokens, self.max_model_len
            )));
        }
        if !self.chunked_prefill && self.long_prefill_token_threshold > 0 {
            return Err(Error::config(format!(
                "long_prefill_token_threshold is {}, but it cuts prompts and chunked prefill is off; set it to 0",
                self.long_prefill_token_threshold
            )));
        }
        let (all, long) = (self.max_num_partial_prefills, self.max_long_partial_prefills);
        if all == 0 || long == 0 || long > all {
            return Err(Error::config(format!(
                "max_long_partial_prefills is {long} and max_num_partial_prefills {all}; both must be at least 1, and the \
                 first at most the second"
            )));
        }
        if !(self.watermark >= 0.0 && self.watermark < 1.0) {
            return Err(Error::config(format!(
                "watermark is {}, but must be a share of the blocks from 0 up to, but not including, 1",
                self.watermark
            )));
        }
        if self.aging_micros == 0 || self.aging_micros > LONGEST_AGING {
            return Err(Error::config(format!(
                "aging is {} us for one level of priority, but must be above 0 and at most {} s",
                self.aging_micros,
                LONGEST_AGING / 1_000_000
            )));
        }
        if self.watchdog_steps == 0 {
            return Err(Error::config("watchdog_steps is 0, which would end every request; use at least 1"));
        }
        if self.preemption == Preemption::Swap && capacity.host_blocks == 0 {
            return Err(Error::config(
                "preemption is swap, but the host has no room for blocks; give it some with --swap-space, or choose \
                 recompute",
            ));
        }
        if self.host_cache && capacity.host_blocks == 0 {
            return Err(Error::config(
                "the host's prefix cache is on, but the host has no room for blocks; give it some with --swap-space, or \
                 turn it off",
            ));
        }
        if self.host_cache && !self.prefix_cache {
            return Err(Error::config(
                "the host's prefix cache is the second level of the prefix cache, which is off; turn both on or off",
            ));
        }
        Ok(())
    }
}
