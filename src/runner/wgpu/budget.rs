//! Keeps submissions short. Watchdogs kill work that runs for seconds (some drivers: two), and a user interface on the same
//! queue waits behind us; so a step that would run longer than the budget is submitted in pieces.

/// Longest time that one submission shall take, in microseconds.
const BUDGET_MICROS: u64 = 100_000;
/// Guess for a token row before anything was measured: a software adapter with a small model.
const FIRST_GUESS_MICROS: u64 = 10_000;
/// Rows below which a step is not cut: decoding is short, and a cut costs.
const WHOLE_BELOW: usize = 16;

/// What is known about the speed of this device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    micros_per_row: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { micros_per_row: FIRST_GUESS_MICROS }
    }
}

impl Budget {
    /// Into how many submissions a step of `rows` token rows and `dispatches` dispatches is cut.
    pub(super) fn parts(&self, rows: usize, dispatches: usize) -> usize {
        match rows < WHOLE_BELOW {
            true => 1,
            false => (rows as u64 * self.micros_per_row).div_ceil(BUDGET_MICROS).clamp(1, dispatches as u64) as usize,
        }
    }

    /// Takes note that `rows` token rows took `micros`. Small steps tell little about large ones.
    pub(super) fn learn(&mut self, rows: usize, micros: u64) {
        if rows >= WHOLE_BELOW {
            // Halfway to what was seen, so that one hiccup does not cut the next steps to shreds.
            self.micros_per_row = (self.micros_per_row + micros / rows as u64).div_ceil(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_steps_are_cut_and_short_ones_are_not() {
        let mut budget = Budget::default();
        assert_eq!(budget.parts(1, 250), 1);
        assert_eq!(budget.parts(128, 250), 13);
        assert_eq!(budget.parts(100_000, 250), 250);
        for _ in 0..20 {
            budget.learn(512, 10_240);
        }
        assert_eq!(budget.parts(512, 250), 1);
    }
}
