//! From values to pixels, and the round numbers along the way.

/// How values are spread along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scale {
    /// Equal distances for equal differences.
    #[default]
    Linear,
    /// Equal distances for equal ratios; values must be above 0.
    Log,
}

/// A range of values laid over a range of pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    /// Value at `from`.
    pub low: f64,
    /// Value at `to`.
    pub high: f64,
    /// Pixel of `low`.
    pub from: f64,
    /// Pixel of `high`; smaller than `from` on axes that go up.
    pub to: f64,
    /// See [`Scale`].
    pub scale: Scale,
}

impl Axis {
    /// An axis over `low..=high`; an empty range is widened so that it has a middle.
    pub fn new(low: f64, high: f64, from: f64, to: f64, scale: Scale) -> Self {
        let (low, high) = match scale {
            Scale::Linear if high > low => (low, high),
            Scale::Linear => (low, low + if low == 0.0 { 1.0 } else { low.abs() }),
            Scale::Log => {
                let high = if high > 0.0 { high } else { 1.0 };
                // What is not positive has no place; twelve decades are more than anybody reads.
                let low = low.max(high * 1e-12);
                (low, if high > low { high } else { low * 10.0 })
            }
        };
        Self { low, high, from, to, scale }
    }

    /// The pixel of a value, clamped to the axis.
    pub fn pixel(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// At most about `most` round values on the axis.
    pub fn ticks(&self, most: usize) -> Vec<f64> {
        match self.scale {
            Scale::Linear => linear_ticks(self.low, self.high, most),
            Scale::Log => log_ticks(self.low, self.high, most),
        }
    }
}

/// The smallest of 1, 2, 5, 10, 20 ... (and their fractions) that is at least `value`.
pub fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    // A little slack, or 0.3 / 0.1 would count as more than 3.
    factors.into_iter().map(|factor| factor * power).find(|step| *step >= value * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

fn linear_ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let step = round_up((high - low) / most.max(1) as f64);
    let first = (low / step - 1e-9).ceil();
    let count = ((high / step + 1e-9).floor() - first).max(0.0) as usize;
    (0..=count).map(|index| (first + index as f64) * step).collect()
}

fn log_ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let powers = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
    let inside = |value: &f64| *value >= low * (1.0 - 1e-9) && *value <= high * (1.0 + 1e-9);
    let spread = |factors: &[f64]| -> Vec<f64> {
        let all = powers.clone().flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
        all.filter(inside).collect()
    };
    let fine = spread(&[1.0, 2.0, 5.0]);
    if fine.len() <= most {
        return fine;
    }
    let coarse = spread(&[1.0]);
    let stride = coarse.len().div_ceil(most.max(1)).max(1);
    coarse.into_iter().step_by(stride).collect()
}

/// A value as people write it: `0.25`, `40`, `2,500`, `20k`, `1.5M`. Four digits that matter.
pub fn label(value: f64) -> String {
    let size = value.abs();
    let (scaled, suffix) = match size {
        _ if size >= 1e9 => (value / 1e9, "G"),
        _ if size >= 1e6 => (value / 1e6, "M"),
        _ if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        size if size >= 0.1 || size == 0.0 => 3,
        size => (3 - size.log10().floor() as i32).clamp(0, 12) as usize,
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    let text = if text == "-0" { "0" } else { text };
    format!("{}{suffix}", with_commas(text))
}

/// A count with commas between thousands.
pub fn count(value: u64) -> String {
    with_commas(&value.to_string())
}

fn with_commas(text: &str) -> String {
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, digits) = whole.split_at(usize::from(whole.starts_with('-')));
    let mut grouped = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// The unit in which a span of seconds reads best, and how many there are in a second.
pub fn time_unit(seconds: f64) -> (&'static str, f64) {
    match seconds {
        span if span >= 2.0 => ("s", 1.0),
        span if span >= 2e-3 => ("ms", 1e3),
        _ => ("µs", 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let axis = |low, high, scale| Axis::new(low, high, 0.0, 100.0, scale);
        assert_eq!(axis(0.0, 1.0, Scale::Linear).ticks(5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(axis(3.0, 27.0, Scale::Linear).ticks(5), [5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!(axis(1.0, 1e5, Scale::Log).ticks(6), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]);
        assert_eq!(axis(1.0, 10.0, Scale::Log).ticks(6), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(axis(1.0, 1e6, Scale::Log).ticks(4), [1.0, 100.0, 1e4, 1e6]);
    }

    #[test]
    fn any_range_has_few_ticks_and_finite_pixels() {
        let ranges = [(0.0, 0.0), (5.0, 5.0), (-3.0, 3.0), (1e-9, 2e-9), (0.0, 1e18), (7.0, 2.0)];
        for (low, high) in ranges {
            for scale in [Scale::Linear, Scale::Log] {
                let axis = Axis::new(low, high, 10.0, 90.0, scale);
                let ticks = axis.ticks(6);
                assert!(ticks.len() <= 7, "{low}..{high}: {ticks:?}");
                for value in ticks.into_iter().chain([low, high, -1.0, 0.0]) {
                    assert!((10.0..=90.0).contains(&axis.pixel(value)), "{low}..{high} {scale:?}: {value}");
                }
            }
        }
    }

    #[test]
    fn pixels_follow_the_scale() {
        let up = Axis::new(0.0, 10.0, 100.0, 0.0, Scale::Linear);
        assert_eq!([up.pixel(0.0), up.pixel(2.5), up.pixel(10.0)], [100.0, 75.0, 0.0]);
        let log = Axis::new(1.0, 100.0, 0.0, 100.0, Scale::Log);
        assert!((log.pixel(10.0) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn labels_are_short() {
        let cases = [
            (0.0, "0"),
            (0.6000000000000001, "0.6"),
            (0.00025, "0.00025"),
            (-0.0, "0"),
            (12.5, "12.5"),
            (2500.0, "2,500"),
            (20_000.0, "20k"),
            (1_500_000.0, "1.5M"),
            (-3.25, "-3.25"),
            (1e-3, "0.001"),
        ];
        for (value, text) in cases {
            assert_eq!(label(value), text, "{value}");
        }
        assert_eq!([count(0), count(999), count(1000), count(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn spans_have_the_unit_that_reads_best() {
        assert_eq!(
            [time_unit(30.0).0, time_unit(1.5).0, time_unit(0.002).0, time_unit(0.0).0],
            ["s", "ms", "ms", "µs"]
        );
    }

    #[test]
    fn steps_round_up_to_one_two_five() {
        let cases = [(0.3, 0.5), (1.0, 1.0), (1.1, 2.0), (6.0, 10.0), (0.0, 1.0), (f64::NAN, 1.0), (200.0, 200.0)];
        for (value, step) in cases {
            assert!((round_up(value) - step).abs() < 1e-12, "{value}: {}", round_up(value));
        }
    }
}
