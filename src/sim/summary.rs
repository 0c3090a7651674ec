//! Figures of a run, as people compare serving systems by them: time to first token, time per output token, inter-token
//! latency, end to end, throughput, goodput under a service level.
//!
//! Percentiles interpolate linearly between the two nearest ranks. Nothing divides by zero: without data a figure is 0.

use super::driver::{Run, Timeline};
use crate::metrics::percentile;
use crate::sched::FinishReason;
use serde::Serialize;

/// How values are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Number of values.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95 of 100 are no larger.
    pub p95: f64,
    /// 99 of 100 are no larger.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of any values, in any order.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        Self {
            count,
            mean: ratio(values.iter().sum(), count as f64),
            p50: percentile(&values, 0.5),
            p95: percentile(&values, 0.95),
            p99: percentile(&values, 0.99),
            max: values.last().copied().unwrap_or(0.0),
        }
    }
}

/// `part / whole`, or 0 where there is no whole.
pub fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// What counts as served well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Slo {
    /// Most milliseconds until the first token.
    pub ttft_ms: Option<f64>,
    /// Most milliseconds for each later token, on average over the request.
    pub tpot_ms: Option<f64>,
}

/// The figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Requests that ended by a stop or at their length.
    pub completed: usize,
    /// Requests that ended otherwise.
    pub failed: usize,
    /// From the first arrival to the last end.
    pub seconds: f64,
    /// Prompt tokens of all requests.
    pub input_tokens: usize,
    /// Generated tokens of all requests.
    pub output_tokens: usize,
    /// Of the prompt tokens, those found in the prefix cache at first admission.
    pub cached_tokens: usize,
    /// Prompt and generated tokens a second.
    pub total_tokens_per_second: f64,
    /// Generated tokens a second.
    pub output_tokens_per_second: f64,
    /// Completed requests a second.
    pub requests_per_second: f64,
    /// From arrival to admission, milliseconds.
    pub queue_ms: Spread,
    /// From arrival to the first token, milliseconds.
    pub ttft_ms: Spread,
    /// (last - first token) / (tokens - 1) of each request with two tokens or more, milliseconds.
    pub tpot_ms: Spread,
    /// Between tokens that follow each other, milliseconds.
    pub itl_ms: Spread,
    /// From arrival to the end, milliseconds.
    pub e2e_ms: Spread,
    /// Times that a request lost its slot.
    pub preemptions: u64,
    /// Share of all requests that completed within the service level.
    pub within_slo: f64,
    /// Such requests a second.
    pub goodput: f64,
}

impl Timeline {
    /// Arrival to first token, in milliseconds.
    pub fn ttft_ms(&self) -> Option<f64> {
        self.token_micros.first().map(|first| millis(first - self.arrival_micros))
    }

    /// Mean time of each token after the first, in milliseconds; of two tokens or more.
    pub fn tpot_ms(&self) -> Option<f64> {
        let (first, last) = (self.token_micros.first()?, self.token_micros.last()?);
        let gaps = self.token_micros.len() - 1;
        (gaps > 0).then(|| millis(last - first) / gaps as f64)
    }

    /// Whether it ended as it should.
    pub fn completed(&self) -> bool {
        matches!(self.end, Some((_, FinishReason::Stop | FinishReason::Length)))
    }

    /// Whether it completed within `slo`. A request without a second token has no time per token to miss.
    pub fn within(&self, slo: &Slo) -> bool {
        let holds = |measured: Option<f64>, limit: Option<f64>| match (measured, limit) {
            (Some(measured), Some(limit)) => measured <= limit,
            _ => true,
        };
        self.completed() && holds(self.ttft_ms(), slo.ttft_ms) && holds(self.tpot_ms(), slo.tpot_ms)
    }
}

impl Summary {
    /// Of the requests of `run` that `which` selects; rates are over the time of the whole run.
    pub fn of(run: &Run, slo: &Slo, which: impl Fn(usize) -> bool) -> Self {
        let chosen = || run.timelines.iter().enumerate().filter(|(number, _)| which(*number)).map(|(_, one)| one);
        let seconds = run.micros as f64 / 1e6;
        let count = |holds: &dyn Fn(&Timeline) -> bool| chosen().filter(|timeline| holds(timeline)).count();
        let completed = count(&Timeline::completed);
        let input_tokens: usize = chosen().map(|timeline| timeline.prompt_tokens).sum();
        let output_tokens: usize = chosen().map(|timeline| timeline.tokens.len()).sum();
        let within = count(&|timeline| timeline.within(slo));
        let since_arrival = |timeline: &Timeline, at: u64| millis(at - timeline.arrival_micros);
        Self {
            completed,
            failed: chosen().count() - completed,
            seconds,
            input_tokens,
            output_tokens,
            cached_tokens: chosen().map(|timeline| timeline.cached_tokens).sum(),
            total_tokens_per_second: ratio((input_tokens + output_tokens) as f64, seconds),
            output_tokens_per_second: ratio(output_tokens as f64, seconds),
            requests_per_second: ratio(completed as f64, seconds),
            queue_ms: Spread::of(chosen().filter_map(|one| Some(since_arrival(one, one.admitted_micros?))).collect()),
            ttft_ms: Spread::of(chosen().filter_map(Timeline::ttft_ms).collect()),
            tpot_ms: Spread::of(chosen().filter_map(Timeline::tpot_ms).collect()),
            itl_ms: Spread::of(
                chosen()
                    .flat_map(|timeline| timeline.token_micros.windows(2).map(|pair| millis(pair[1] - pair[0])))
                    .collect(),
            ),
            e2e_ms: Spread::of(chosen().filter_map(|one| Some(since_arrival(one, one.end?.0))).collect()),
            preemptions: chosen().map(|timeline| u64::from(timeline.preemptions)).sum(),
            within_slo: ratio(within as f64, chosen().count() as f64),
            goodput: ratio(within as f64, seconds),
        }
    }
}

impl Run {
    /// The mean of `value` over time: each sample holds from the one before it.
    pub fn mean_over_time(&self, value: impl Fn(&super::Sample) -> f64) -> f64 {
        let (mut area, mut before) = (0.0, self.samples.first().map_or(0, |sample| sample.micros));
        let start = before;
        for sample in &self.samples {
            area += value(sample) * (sample.micros - before) as f64;
            before = sample.micros;
        }
        ratio(area, (before - start) as f64)
    }
}

fn millis(micros: u64) -> f64 {
    micros as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_interpolated_percentiles() {
        let spread = Spread::of(vec![40.0, 10.0, 30.0, 20.0]);
        assert_eq!((spread.count, spread.mean, spread.p50, spread.max), (4, 25.0, 25.0, 40.0));
        // Rank 0.95 * 3 = 2.85: 85 hundredths of the way from 30 to 40.
        assert!((spread.p95 - 38.5).abs() < 1e-12);
    }

    fn timeline(arrival: u64, tokens: &[u64]) -> Timeline {
        Timeline {
            prompt_tokens: 4,
            arrival_micros: arrival,
            admitted_micros: Some(arrival + 500),
            token_micros: tokens.to_vec(),
            tokens: vec![1; tokens.len()],
            end: tokens.last().map(|last| (*last, FinishReason::Length)),
            ..Timeline::default()
        }
    }

    #[test]
    fn the_figures_follow_their_definitions() {
        let timelines = vec![timeline(0, &[2000, 3000, 5000]), timeline(1000, &[9000])];
        let run = Run { timelines, micros: 10_000, ..Run::default() };
        let slo = Slo { ttft_ms: Some(4.0), tpot_ms: Some(1.5) };
        let summary = Summary::of(&run, &slo, |_| true);
        assert_eq!((summary.input_tokens, summary.output_tokens, summary.completed), (8, 4, 2));
        assert_eq!(summary.output_tokens_per_second, 400.0);
        assert_eq!((summary.ttft_ms.mean, summary.ttft_ms.max), (5.0, 8.0));
        // A single token has no time per token.
        assert_eq!((summary.tpot_ms.count, summary.tpot_ms.mean), (1, 1.5));
        assert_eq!((summary.itl_ms.count, summary.itl_ms.max), (2, 2.0));
        assert_eq!((summary.e2e_ms.mean, summary.queue_ms.mean), (6.5, 0.5));
        // The second one is late.
        assert_eq!((summary.within_slo, summary.goodput), (0.5, 100.0));
        assert_eq!(Summary::of(&run, &slo, |number| number == 1).within_slo, 0.0);
    }

    #[test]
    fn nothing_in_gives_zeros_out() {
        let run = Run::default();
        assert_eq!(Summary::of(&run, &Slo::default(), |_| true), Summary::default());
        assert_eq!(run.mean_over_time(|_| 1.0), 0.0);
    }
}
