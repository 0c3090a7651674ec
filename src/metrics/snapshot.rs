//! The figures at one moment, as plain numbers with names.

use super::{Metrics, Summary, rate, share};
use serde::Serialize;

/// [`Metrics`] as figures for people and programs. Times are in milliseconds; see the [module](super) for their
/// beginnings and ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)] // the names are those of `Metrics`
pub struct MetricsSnapshot {
    pub requests: u64,
    pub refused: u64,
    pub completed: u64,
    pub cancelled: u64,
    pub failed: u64,
    pub waiting: usize,
    pub running: usize,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    pub prompt_tokens_per_second: f64,
    pub decode_tokens_per_second: f64,
    pub ttft_ms: Summary,
    pub tpot_ms: Summary,
    pub inter_token_ms: Summary,
    pub latency_ms: Summary,
    pub queue_ms: Summary,
    pub prefill_ms: Summary,
    pub decode_ms: Summary,
    pub kv_blocks_total: usize,
    pub kv_blocks_used: usize,
    pub kv_blocks_cached: usize,
    /// Blocks in use as a share of all, on average over the time that the device worked.
    pub kv_use_mean: f64,
    /// Most blocks in use at once, as a share of all.
    pub kv_use_peak: f64,
    /// Share of the looked-up tokens that were found.
    pub prefix_hit_rate: f64,
    /// The same over the latest [1,000](super::RECENT_LOOKUPS) look-ups.
    pub prefix_hit_rate_recent: f64,
    /// Of all tokens found, those whose KV came from the host.
    pub host_hit_share: f64,
    pub host_blocks_total: usize,
    pub host_blocks_used: usize,
    pub host_blocks_cached: usize,
    pub preemptions: u64,
    pub swaps_out: u64,
    pub swaps_in: u64,
    pub swapped_blocks: u64,
    pub copied_blocks: u64,
    pub evicted_blocks: u64,
    pub kept_blocks: u64,
    pub steps: u64,
    pub submissions: u64,
    pub device_recoveries: u64,
}

impl Metrics {
    /// The figures as they stand.
    pub fn snapshot(&self) -> MetricsSnapshot {
        let stats = &self.scheduler;
        let total = stats.blocks_total;
        MetricsSnapshot {
            requests: self.requests,
            refused: self.refused,
            completed: self.completed,
            cancelled: self.cancelled,
            failed: self.failed,
            waiting: stats.waiting,
            running: stats.running,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            generated_tokens: self.generated_tokens,
            prompt_tokens_per_second: rate(self.prefilled_tokens, self.prefill_time),
            decode_tokens_per_second: rate(self.decoded_tokens, self.decode_time),
            ttft_ms: self.first_token.summary_ms(),
            tpot_ms: self.per_output_token.summary_ms(),
            inter_token_ms: self.inter_token.summary_ms(),
            latency_ms: self.latency.summary_ms(),
            queue_ms: self.queue.summary_ms(),
            prefill_ms: self.prefill.summary_ms(),
            decode_ms: self.decode.summary_ms(),
            kv_blocks_total: total,
            kv_blocks_used: stats.blocks_used,
            kv_blocks_cached: stats.blocks_cached,
            kv_use_mean: if total == 0 { 0.0 } else { self.mean_blocks() / total as f64 },
            kv_use_peak: share(self.peak_blocks as u64, total as u64),
            prefix_hit_rate: share(stats.prefix_hits, stats.prefix_queries),
            prefix_hit_rate_recent: self.recent_hits.rate(),
            host_hit_share: share(stats.host_hits, stats.prefix_hits),
            host_blocks_total: stats.host_total,
            host_blocks_used: stats.host_used,
            host_blocks_cached: stats.host_cached,
            preemptions: stats.preemptions,
            swaps_out: stats.swaps_out,
            swaps_in: stats.swaps_in,
            swapped_blocks: self.swapped_blocks,
            copied_blocks: stats.copies,
            evicted_blocks: stats.evictions,
            kept_blocks: self.kept_blocks,
            steps: stats.steps,
            submissions: self.submissions,
            device_recoveries: self.recoveries,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_engine_has_figures_without_nan() {
        let snapshot = Metrics::default().snapshot();
        assert_eq!(snapshot, MetricsSnapshot::default());
        assert!(!serde_json::to_string(&snapshot).unwrap().contains("null"));
    }
}
