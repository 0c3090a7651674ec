//! What the scheduler counts.

use super::Scheduler;

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    pub host_hits: u64,
    pub evictions: u64,
    pub preemptions: u64,
    pub swaps_out: u64,
    pub swaps_in: u64,
    pub copies: u64,
    pub steps: u64,
    pub prefill_tokens: u64,
    pub decode_tokens: u64,
}

/// Where the scheduler stands, for metrics and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Sequences without a slot.
    pub waiting: usize,
    /// Sequences with a slot.
    pub running: usize,
    /// Submissions under way.
    pub in_flight: usize,
    /// Blocks that can be handed out now, cached or not.
    pub blocks_free: usize,
    /// Blocks in some table, or released while a submission under way may still touch them.
    pub blocks_used: usize,
    /// All blocks.
    pub blocks_total: usize,
    /// Blocks that can be found by their content.
    pub blocks_cached: usize,
    /// Blocks of the host.
    pub host_total: usize,
    /// Of these, blocks of swapped sequences.
    pub host_used: usize,
    /// Of these, blocks that can be found by their content.
    pub host_cached: usize,
    /// Tokens looked up in the prefix cache since the start.
    pub prefix_queries: u64,
    /// Tokens found there, on the device or the host.
    pub prefix_hits: u64,
    /// Of these, on the host.
    pub host_hits: u64,
    /// Cached blocks that lost their place on the device.
    pub evictions: u64,
    /// Times that a sequence lost its blocks.
    pub preemptions: u64,
    /// Of these, times that they went to the host.
    pub swaps_out: u64,
    /// Times that a sequence came back from the host.
    pub swaps_in: u64,
    /// Shared blocks copied before a write.
    pub copies: u64,
    /// Steps submitted; a submission of n steps counts n.
    pub steps: u64,
    /// Known tokens submitted.
    pub prefill_tokens: u64,
    /// Tokens that decode rows were submitted for.
    pub decode_tokens: u64,
}

impl Scheduler {
    /// Counts for metrics.
    pub fn stats(&self) -> SchedulerStats {
        let (blocks, host, totals) = (self.pool.counts(), self.host.counts(), &self.totals);
        SchedulerStats {
            waiting: self.waiting.len() + self.parked,
            running: self.running.len(),
            in_flight: self.flights.len(),
            blocks_free: blocks.free,
            blocks_used: blocks.held + blocks.pending,
            blocks_total: self.pool.block_count(),
            blocks_cached: self.pool.published_count(),
            host_total: host.total,
            host_used: host.pinned,
            host_cached: host.cached,
            prefix_queries: totals.prefix_queries,
            prefix_hits: totals.prefix_hits,
            host_hits: totals.host_hits,
            evictions: totals.evictions,
            preemptions: totals.preemptions,
            swaps_out: totals.swaps_out,
            swaps_in: totals.swaps_in,
            copies: totals.copies,
            steps: totals.steps,
            prefill_tokens: totals.prefill_tokens,
            decode_tokens: totals.decode_tokens,
        }
    }
}
