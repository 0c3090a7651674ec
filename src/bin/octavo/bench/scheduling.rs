//! The scheduler's choices that benches compare.

use clap::{Args, ValueEnum};
use octavo::sched::{Policy, Preemption, SchedulerConfig};

/// Who runs first, and who gives way.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Scheduling")]
pub struct SchedulingArgs {
    /// Who runs first: in order of arrival, by priority, by deadline, or prompts strictly before decoding
    #[arg(long, value_enum, default_value_t = PolicyArg::Fcfs)]
    policy: PolicyArg,
    /// What becomes of a sequence that must give way: computed again, moved to the host, or the cheaper of both
    #[arg(long, value_enum, default_value_t = PreemptionArg::Recompute)]
    preemption: PreemptionArg,
    /// With --policy priority: waiting so long outweighs one level of priority
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    aging_ms: u64,
    /// Prompts that may be partly computed at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    max_num_partial_prefills: usize,
    /// Of these, prompts longer than --long-prefill-token-threshold
    #[arg(long, value_name = "N", default_value_t = 1)]
    max_long_partial_prefills: usize,
    /// Share of the KV blocks that admission leaves free
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    watermark: f32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PolicyArg {
    Fcfs,
    Priority,
    Edf,
    PhaseSplit,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PreemptionArg {
    Recompute,
    Swap,
    Auto,
}

impl SchedulingArgs {
    /// `config` with these choices.
    pub fn apply(&self, config: SchedulerConfig) -> SchedulerConfig {
        SchedulerConfig {
            policy: match self.policy {
                PolicyArg::Fcfs => Policy::Fcfs,
                PolicyArg::Priority => Policy::Priority,
                PolicyArg::Edf => Policy::Edf,
                PolicyArg::PhaseSplit => Policy::PhaseSplit,
            },
            preemption: match self.preemption {
                PreemptionArg::Recompute => Preemption::Recompute,
                PreemptionArg::Swap => Preemption::Swap,
                PreemptionArg::Auto => Preemption::Auto,
            },
            aging_micros: self.aging_ms.saturating_mul(1000),
            max_num_partial_prefills: self.max_num_partial_prefills,
            max_long_partial_prefills: self.max_long_partial_prefills,
            watermark: self.watermark,
            ..config
        }
    }
}
