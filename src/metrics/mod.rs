//! What the engine counts: sums since the start, distributions of the latest values, and a snapshot for people and
//! programs.
//!
//! Rates are those of the device's time, not of the wall clock: a submission's span begins when the one before it ended
//! (or when it was submitted, if that is later) and ends when its result was seen. Submissions that hold any prompt
//! tokens count for the prompt rate, the others for the decode rate. Percentiles are exact and interpolated linearly, over
//! the latest [`WINDOW`] values. Nothing here divides by zero: a rate without time is 0, and so is every figure of an
//! engine that did nothing.
//!
//! Times of a request, all on the engine's clock:
//!
//! | figure | from | to |
//! |---|---|---|
//! | queue | its arrival | its slot |
//! | prefill | its slot | its first token |
//! | TTFT, time to first token | its arrival | its first token |
//! | decode | its first token | its end |
//! | TPOT, time per output token | decode / (output tokens - 1), of requests with at least two | |
//! | inter-token latency | a delivery to its stream | the next one; a delivery brings one token or, with several steps in a submission, a few |
//! | latency | its arrival | its end |

mod recent;
mod snapshot;
mod window;

pub use recent::{RECENT_LOOKUPS, RecentHits};
pub use snapshot::MetricsSnapshot;
pub use window::{Summary, WINDOW, Window, percentile};

use crate::engine::Finished;
use crate::sched::plan::StepPlan;
use crate::sched::{FinishReason, Released, SchedEvent, SchedulerStats};
use std::time::Duration;

/// Sums and distributions since the engine started.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Accepted requests.
    pub requests: u64,
    /// Requests that the scheduler refused.
    pub refused: u64,
    /// Requests that ended by a stop or at their length.
    pub completed: u64,
    /// Requests that were cancelled.
    pub cancelled: u64,
    /// Requests that ended with an error of their own.
    pub failed: u64,
    /// Prompt tokens of ended requests.
    pub prompt_tokens: u64,
    /// Of these, tokens served from the prefix cache.
    pub cached_tokens: u64,
    /// Generated tokens of ended requests.
    pub generated_tokens: u64,
    /// Prompt tokens computed, after preemptions again.
    pub prefilled_tokens: u64,
    /// Time of submissions with prompt tokens.
    pub prefill_time: Duration,
    /// Tokens sampled by submissions without prompt tokens.
    pub decoded_tokens: u64,
    /// Time of these submissions.
    pub decode_time: Duration,
    /// Submissions that ended.
    pub submissions: u64,
    /// Times that a lost device was replaced.
    pub recoveries: u64,
    /// The scheduler's figures.
    pub scheduler: SchedulerStats,
    /// Most KV blocks in use at once.
    pub peak_blocks: usize,
    /// Blocks that preemptions moved to the host.
    pub swapped_blocks: u64,
    /// Evicted blocks whose content the host kept.
    pub kept_blocks: u64,
    /// Prefix cache, lately.
    pub recent_hits: RecentHits,
    /// Until admission.
    pub queue: Window,
    /// From admission to the first token.
    pub prefill: Window,
    /// From the first token to the end.
    pub decode: Window,
    /// Time to first token.
    pub first_token: Window,
    /// Time per output token after the first.
    pub per_output_token: Window,
    /// Between deliveries to a stream.
    pub inter_token: Window,
    /// Time to the end.
    pub latency: Window,
    /// Blocks in use times the device's time, for the mean.
    block_seconds: f64,
    /// Admissions since the scheduler's figures were last taken.
    admissions: u64,
}

/// What a submission is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShare {
    /// Prompt tokens in it.
    pub prefill_tokens: usize,
    /// Steps in it.
    pub steps: u32,
}

impl StepShare {
    /// The share of `plan`.
    pub fn of(plan: &StepPlan) -> Self {
        Self { prefill_tokens: plan.prefill_tokens.len(), steps: u32::from(plan.steps.max(1)) }
    }
}

impl Metrics {
    /// A submission ended after holding the device for `span` and brought `sampled` tokens. Call it before
    /// [`state`](Self::state): the blocks in use until now are those of this span.
    pub fn retired(&mut self, share: StepShare, sampled: usize, span: Duration) {
        self.submissions += 1;
        self.block_seconds += self.scheduler.blocks_used as f64 * span.as_secs_f64();
        if share.prefill_tokens > 0 {
            self.prefilled_tokens += share.prefill_tokens as u64;
            self.prefill_time += span;
        } else {
            self.decoded_tokens += sampled as u64;
            self.decode_time += span;
        }
    }

    /// The scheduler decided.
    pub fn events(&mut self, events: &[SchedEvent]) {
        for event in events {
            match event {
                SchedEvent::Admitted { .. } => self.admissions += 1,
                SchedEvent::Preempted { how: Released::Swapped { blocks }, .. } => {
                    self.swapped_blocks += u64::from(*blocks);
                }
                SchedEvent::Evicted { kept: Some(_), .. } => self.kept_blocks += 1,
                _ => {}
            }
        }
    }

    /// A stream got its next tokens, `gap` after the ones before.
    pub fn delivered(&mut self, gap: Duration) {
        self.inter_token.add(gap);
    }

    /// A request ended.
    pub fn finished(&mut self, end: &Finished) {
        match end.reason {
            FinishReason::Stop | FinishReason::Length | FinishReason::Repetition => self.completed += 1,
            FinishReason::Cancelled => self.cancelled += 1,
            FinishReason::Error | FinishReason::Stalled | FinishReason::NothingAllowed => self.failed += 1,
        }
        self.prompt_tokens += end.usage.prompt_tokens as u64;
        self.cached_tokens += end.usage.cached_tokens as u64;
        self.generated_tokens += end.usage.output_tokens as u64;
        self.queue.add(end.timings.queue);
        let times = [
            (&mut self.first_token, end.timings.first_token),
            (&mut self.prefill, end.timings.prefill()),
            (&mut self.decode, end.timings.decode()),
            (&mut self.per_output_token, end.timings.per_output_token(end.usage.output_tokens)),
        ];
        for (window, time) in times {
            if let Some(time) = time {
                window.add(time);
            }
        }
        self.latency.add(end.timings.total);
    }

    /// Where the scheduler stands now.
    pub fn state(&mut self, stats: &SchedulerStats) {
        let queried = stats.prefix_queries.saturating_sub(self.scheduler.prefix_queries);
        let found = stats.prefix_hits.saturating_sub(self.scheduler.prefix_hits);
        if queried > 0 {
            self.recent_hits.add(self.admissions.max(1), queried, found);
        }
        self.admissions = 0;
        self.scheduler = *stats;
        self.peak_blocks = self.peak_blocks.max(stats.blocks_used);
    }

    /// Mean of the KV blocks in use, over the time that the device worked.
    pub fn mean_blocks(&self) -> f64 {
        let time = (self.prefill_time + self.decode_time).as_secs_f64();
        if time == 0.0 { 0.0 } else { self.block_seconds / time }
    }
}

/// `count` per second; 0 without time.
pub fn rate(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// `part` of `whole`; 0 of nothing.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{BlockId, HostBlockId, SeqId};
    use crate::engine::{Timings, Usage};
    use crate::sched::{Estimates, PreemptReason};

    const fn ms(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    #[test]
    fn mixed_submissions_count_for_the_prompt_rate_only() {
        let mut metrics = Metrics::default();
        metrics.retired(StepShare { prefill_tokens: 100, steps: 1 }, 3, Duration::from_secs(2));
        metrics.retired(StepShare { prefill_tokens: 0, steps: 4 }, 30, Duration::from_secs(3));
        let snapshot = metrics.snapshot();
        assert_eq!((snapshot.prompt_tokens_per_second, snapshot.decode_tokens_per_second), (50.0, 10.0));
        assert_eq!(snapshot.submissions, 2);
    }

    #[test]
    fn block_use_is_weighted_by_the_time_of_the_device() {
        let mut metrics = Metrics::default();
        let share = StepShare { prefill_tokens: 0, steps: 1 };
        let stats = |blocks_used| SchedulerStats { blocks_used, blocks_total: 40, ..Default::default() };
        metrics.state(&stats(10));
        metrics.retired(share, 1, ms(30));
        metrics.state(&stats(30));
        metrics.retired(share, 1, ms(10));
        metrics.state(&stats(0));
        let snapshot = metrics.snapshot();
        assert!((snapshot.kv_use_mean - 15.0 / 40.0).abs() < 1e-12, "{}", snapshot.kv_use_mean);
        assert_eq!((snapshot.kv_use_peak, snapshot.kv_blocks_used), (0.75, 0));
    }

    #[test]
    fn a_request_is_cut_into_its_phases() {
        let mut metrics = Metrics::default();
        let end = |queue, first_token: Option<u64>, total, output_tokens| Finished {
            alternatives: Vec::new(),
            reason: FinishReason::Length,
            usage: Usage { prompt_tokens: 10, output_tokens, ..Usage::default() },
            timings: Timings { queue: ms(queue), first_token: first_token.map(ms), total: ms(total) },
            seed: 0,
            prompt_logprobs: Vec::new(),
        };
        metrics.finished(&end(5, Some(20), 110, 4));
        // A single token has no gap, and a request that never ran has nothing but its wait.
        metrics.finished(&end(5, Some(10), 10, 1));
        metrics.finished(&end(50, None, 50, 0));
        let snapshot = metrics.snapshot();
        let counts = |summary: Summary| (summary.count, summary.max);
        assert_eq!(counts(snapshot.queue_ms), (3, 50.0));
        assert_eq!(counts(snapshot.prefill_ms), (2, 15.0));
        assert_eq!(counts(snapshot.ttft_ms), (2, 20.0));
        assert_eq!(counts(snapshot.decode_ms), (2, 90.0));
        assert_eq!(counts(snapshot.tpot_ms), (1, 30.0));
        assert_eq!(counts(snapshot.latency_ms), (3, 110.0));
        assert_eq!(snapshot.ttft_ms.p50, 15.0);
    }

    #[test]
    fn blocks_that_went_to_the_host_are_counted() {
        let mut metrics = Metrics::default();
        let seq = SeqId(1);
        let preempted = |how| SchedEvent::Preempted {
            seq,
            reason: PreemptReason::Reset,
            how,
            tokens: 3,
            estimates: Estimates::default(),
        };
        metrics.events(&[
            preempted(Released::Dropped),
            preempted(Released::Swapped { blocks: 4 }),
            SchedEvent::Evicted { block: BlockId(3), kept: None },
            SchedEvent::Evicted { block: BlockId(4), kept: Some(HostBlockId(0)) },
        ]);
        let snapshot = metrics.snapshot();
        assert_eq!((snapshot.swapped_blocks, snapshot.kept_blocks), (4, 1));
    }

    #[test]
    fn the_recent_hit_rate_forgets_and_the_whole_one_does_not() {
        let mut metrics = Metrics::default();
        let admitted = SchedEvent::Admitted { seq: SeqId(0), cached_tokens: 0, host_tokens: 0, blocks: 1 };
        let mut stats = SchedulerStats::default();
        for step in 0..3000 {
            metrics.events(&[admitted]);
            stats.prefix_queries += 100;
            stats.prefix_hits += if step < 1500 { 0 } else { 50 };
            metrics.state(&stats);
        }
        let snapshot = metrics.snapshot();
        assert_eq!((snapshot.prefix_hit_rate, snapshot.prefix_hit_rate_recent), (0.25, 0.5));
    }
}
