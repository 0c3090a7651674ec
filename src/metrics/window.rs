//! Distributions of the latest values: exact percentiles over a bounded window.

use serde::Serialize;
use std::time::Duration;

/// Values that a [`Window`] keeps. More are a better picture of the past and a worse one of now.
pub const WINDOW: usize = 65_536;

/// The latest [`WINDOW`] durations, in microseconds. Grows as it fills and then replaces the oldest.
#[derive(Clone, Debug, Default)]
pub struct Window {
    micros: Vec<u64>,
    /// Where the next value goes once the window is full.
    next: usize,
    count: u64,
}

impl Window {
    /// Adds a value.
    pub fn add(&mut self, value: Duration) {
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        self.count += 1;
        if self.micros.len() < WINDOW {
            self.micros.push(micros);
        } else {
            self.micros[self.next] = micros;
            self.next = (self.next + 1) % WINDOW;
        }
    }

    /// Values since the start, those that left the window included.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The distribution in milliseconds.
    pub fn summary_ms(&self) -> Summary {
        let mut values: Vec<f64> = self.micros.iter().map(|micros| *micros as f64 / 1e3).collect();
        Summary { count: self.count, ..Summary::of(&mut values) }
    }
}

/// A distribution in a few numbers; all 0 when it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Values since the start. The other numbers are about the latest [`WINDOW`] of them.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Half of them are at most this; see [`percentile`].
    pub p50: f64,
    /// 95 in 100 are at most this.
    pub p95: f64,
    /// 99 in 100 are at most this.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Summary {
    /// The distribution of `values`, whose order is lost.
    pub fn of(values: &mut [f64]) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| select(values, share));
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { count: values.len() as u64, mean, p50, p95, p99, max }
    }
}

/// The value below which the share `share` (0 to 1) of the ascending `sorted` lies, interpolated linearly: it is at index
/// `share * (len - 1)`, and between two values where that is no whole number. (Definition 7 of Hyndman and Fan, "Sample
/// Quantiles in Statistical Packages", 1996.) 0 for no values.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let (index, rest) = place(last, share);
    between(sorted[index], sorted[(index + 1).min(last)], rest)
}

/// [`percentile`] of values in any order, in time that grows with their number only.
fn select(values: &mut [f64], share: f64) -> f64 {
    let (index, rest) = place(values.len() - 1, share);
    let (_, at, above) = values.select_nth_unstable_by(index, f64::total_cmp);
    let at = *at;
    let next = above.iter().copied().min_by(f64::total_cmp).unwrap_or(at);
    between(at, next, rest)
}

/// The index of the lower neighbour, and how far the wanted place is beyond it.
fn place(last: usize, share: f64) -> (usize, f64) {
    let place = share.clamp(0.0, 1.0) * last as f64;
    (place as usize, place.fract())
}

fn between(low: f64, high: f64, rest: f64) -> f64 {
    if rest == 0.0 { low } else { low + (high - low) * rest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_lie_on_the_line_between_neighbours() {
        assert_eq!(percentile(&[], 0.5), 0.0);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        let values = [10.0, 20.0, 40.0, 80.0];
        let cases = [(0.0, 10.0), (0.5, 30.0), (1.0 / 3.0, 20.0), (0.75, 50.0), (1.0, 80.0), (2.0, 80.0), (-1.0, 10.0)];
        for (share, expected) in cases {
            assert!((percentile(&values, share) - expected).abs() < 1e-12, "{share}");
        }
    }

    #[test]
    fn the_latest_values_count() {
        let mut window = Window::default();
        assert_eq!(window.summary_ms(), Summary::default());
        for _ in 0..10 {
            window.add(Duration::from_secs(1000));
        }
        for index in 0..WINDOW as u64 {
            window.add(Duration::from_micros(index));
        }
        let summary = window.summary_ms();
        let last = (WINDOW - 1) as f64 / 1e3;
        assert_eq!((summary.count, summary.max, window.micros.len()), (WINDOW as u64 + 10, last, WINDOW));
        assert!((summary.mean - last / 2.0).abs() < 1e-9 && (summary.p50 - last / 2.0).abs() < 1e-9, "{summary:?}");
        assert!((summary.p99 - last * 0.99).abs() < 1e-9, "{summary:?}");
    }

    #[test]
    fn a_very_long_time_is_no_fault() {
        let mut window = Window::default();
        window.add(Duration::MAX);
        assert_eq!(window.summary_ms().max, u64::MAX as f64 / 1e3);
    }

    proptest! {
        #[test]
        fn selecting_equals_sorting(mut values in prop::collection::vec(0.0f64..1e6, 1..200)) {
            let summary = Summary::of(&mut values.clone());
            values.sort_by(f64::total_cmp);
            prop_assert_eq!(summary.p50, percentile(&values, 0.5));
            prop_assert_eq!(summary.p95, percentile(&values, 0.95));
            prop_assert_eq!(summary.p99, percentile(&values, 0.99));
            prop_assert_eq!(summary.max, values[values.len() - 1]);
        }
    }
}
