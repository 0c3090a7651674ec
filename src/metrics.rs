//! What the engine counts: plain numbers and histograms, a snapshot of them for people and programs.
//!
//! Rates are those of the device's time, not of the wall clock: a submission's span begins when the one before it ended
//! (or when it was submitted, if that is later) and ends when its result was seen. Submissions that hold any prompt
//! tokens count for the prompt rate, the others for the decode rate. Nothing here divides by zero: a rate without time
//! is 0.

use crate::engine::Finished;
use crate::sched::plan::StepPlan;
use crate::sched::{FinishReason, SchedulerStats};
use serde::Serialize;
use std::time::Duration;

/// Sums and histograms since the engine started.
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
    /// Time until admission.
    pub queue: Histogram,
    /// Time to first token.
    pub first_token: Histogram,
    /// Time to the end.
    pub latency: Histogram,
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
    /// A submission ended after holding the device for `span` and brought `sampled` tokens.
    pub fn retired(&mut self, share: StepShare, sampled: usize, span: Duration) {
        self.submissions += 1;
        if share.prefill_tokens > 0 {
            self.prefilled_tokens += share.prefill_tokens as u64;
            self.prefill_time += span;
        } else {
            self.decoded_tokens += sampled as u64;
            self.decode_time += span;
        }
    }

    /// A request ended.
    pub fn finished(&mut self, end: &Finished) {
        match end.reason {
            FinishReason::Stop | FinishReason::Length => self.completed += 1,
            FinishReason::Cancelled => self.cancelled += 1,
            FinishReason::Error => self.failed += 1,
        }
        self.prompt_tokens += end.usage.prompt_tokens as u64;
        self.cached_tokens += end.usage.cached_tokens as u64;
        self.generated_tokens += end.usage.output_tokens as u64;
        self.queue.add(end.timings.queue);
        if let Some(first) = end.timings.first_token {
            self.first_token.add(first);
        }
        self.latency.add(end.timings.total);
    }

    /// Where the scheduler stands now.
    pub fn state(&mut self, stats: &SchedulerStats) {
        self.scheduler = *stats;
        self.peak_blocks = self.peak_blocks.max(stats.blocks_used);
    }

    /// The figures as they stand.
    pub fn snapshot(&self) -> MetricsSnapshot {
        let stats = &self.scheduler;
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
            latency_ms: self.latency.summary_ms(),
            queue_ms: self.queue.summary_ms(),
            kv_blocks_total: stats.blocks_total,
            kv_blocks_used: stats.blocks_used,
            kv_use_peak: share(self.peak_blocks as u64, stats.blocks_total as u64),
            prefix_hit_rate: share(stats.prefix_hits, stats.prefix_queries),
            preemptions: stats.preemptions,
            steps: stats.steps,
            submissions: self.submissions,
            device_recoveries: self.recoveries,
        }
    }
}

/// [`Metrics`] as figures for people and programs.
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
    pub latency_ms: Summary,
    pub queue_ms: Summary,
    pub kv_blocks_total: usize,
    pub kv_blocks_used: usize,
    /// Most blocks in use at once, as a share of all.
    pub kv_use_peak: f64,
    /// Share of the looked-up tokens that were found.
    pub prefix_hit_rate: f64,
    pub preemptions: u64,
    pub steps: u64,
    pub submissions: u64,
    pub device_recoveries: u64,
}

/// A distribution in a few numbers; all 0 when it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Summary {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

/// Buckets in one doubling: values within a bucket differ by at most 1/32.
const SUB_BUCKETS: u64 = 32;

/// Durations in logarithmic buckets from one microsecond up. Exact below 64 µs, within about 3 % above.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Grows to the largest value seen; at most some 2,000 entries.
    buckets: Vec<u64>,
    count: u64,
    sum_micros: u128,
    max_micros: u64,
}

impl Histogram {
    /// Adds a value.
    pub fn add(&mut self, value: Duration) {
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        let bucket = bucket_of(micros);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum_micros += u128::from(micros);
        self.max_micros = self.max_micros.max(micros);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The largest value of the bucket in which the share `quantile` of all values is reached; 0 when empty.
    pub fn quantile(&self, quantile: f64) -> Duration {
        let wanted = (quantile * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_micros(last_of(bucket).min(self.max_micros));
            }
        }
        Duration::from_micros(self.max_micros)
    }

    /// The distribution in milliseconds.
    pub fn summary_ms(&self) -> Summary {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        Summary {
            count: self.count,
            mean: if self.count == 0 { 0.0 } else { self.sum_micros as f64 / self.count as f64 / 1e3 },
            p50: ms(self.quantile(0.5)),
            p95: ms(self.quantile(0.95)),
            p99: ms(self.quantile(0.99)),
            max: self.max_micros as f64 / 1e3,
        }
    }
}

/// Values below `2 * SUB_BUCKETS` have a bucket each; above, each doubling is cut into `SUB_BUCKETS`.
fn bucket_of(micros: u64) -> usize {
    let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(SUB_BUCKETS.ilog2() + 1);
    (u64::from(shift) * SUB_BUCKETS + (micros >> shift)) as usize
}

/// The largest value in a bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * SUB_BUCKETS {
        return bucket;
    }
    let shift = bucket / SUB_BUCKETS - 1;
    let first = u128::from(bucket - shift * SUB_BUCKETS) << shift;
    u64::try_from(first + (1u128 << shift) - 1).unwrap_or(u64::MAX)
}

/// `count` per second; 0 without time.
pub fn rate(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket_and_buckets_follow_each_other() {
        let mut values: Vec<u64> = (0..5000).collect();
        values.extend((12..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 12345]));
        values.push(u64::MAX);
        for value in values {
            let bucket = bucket_of(value);
            assert!(value <= last_of(bucket), "{value}");
            assert!(bucket == 0 || value > last_of(bucket - 1), "{value}");
            assert!(last_of(bucket) - value <= value / SUB_BUCKETS, "{value}: bucket too wide");
        }
    }

    #[test]
    fn quantiles_are_within_a_bucket_of_the_sorted_values() {
        let mut histogram = Histogram::default();
        let values: Vec<u64> = (1..=1000).map(|i| i * i).collect();
        for value in &values {
            histogram.add(Duration::from_micros(*value));
        }
        for (quantile, index) in [(0.5, 499), (0.95, 949), (0.99, 989), (1.0, 999)] {
            let (got, exact) = (histogram.quantile(quantile).as_micros() as f64, values[index] as f64);
            assert!(got >= exact && got <= exact * (1.0 + 1.0 / SUB_BUCKETS as f64), "{quantile}: {got}, not {exact}");
        }
        let mean = values.iter().sum::<u64>() as f64 / 1000.0 / 1e3;
        assert!((histogram.summary_ms().mean - mean).abs() < 1e-9);
    }

    #[test]
    fn an_idle_engine_has_figures_without_nan() {
        let snapshot = Metrics::default().snapshot();
        assert_eq!(snapshot, MetricsSnapshot::default());
        assert!(!serde_json::to_string(&snapshot).unwrap().contains("null"));
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
}
