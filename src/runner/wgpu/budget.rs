//! Keeps submissions short. Watchdogs kill work that runs for seconds (some drivers: two), and a user interface on the same
//! queue waits behind us; so a step that would run longer than the budget is submitted in pieces, and several steps are
//! spread over several submissions.

/// Longest time that one submission shall take, in microseconds.
const BUDGET_MICROS: u64 = 100_000;
/// Guess for a token row before anything was measured: a software adapter with a small model.
const FIRST_GUESS_MICROS: u64 = 10_000;
/// Rows below which a step is decoding: bound by the weights, not by the rows, and never cut.
const DECODE_BELOW: usize = 16;

/// What is known about the speed of this device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    micros_per_row: u64,
    /// Of a token row in steps that are mostly prompt, without padding; 0 until one was measured.
    micros_per_prompt_row: u64,
    /// Of a step of few rows; 0 until one was measured.
    micros_per_step: u64,
}

/// How a plan is spread over submissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Pieces of each step.
    pub(super) parts: usize,
    /// Steps in one submission.
    pub(super) steps: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { micros_per_row: FIRST_GUESS_MICROS, micros_per_prompt_row: 0, micros_per_step: 0 }
    }
}

impl Budget {
    /// Time of a prompt's token row, once that was measured.
    pub(super) fn micros_per_prompt_row(&self) -> Option<u64> {
        Some(self.micros_per_prompt_row).filter(|micros| *micros > 0)
    }

    /// How to spread `steps` steps of `rows` token rows and `dispatches` dispatches each.
    pub(super) fn cut(&self, rows: usize, steps: usize, dispatches: usize) -> Cut {
        let step = match rows < DECODE_BELOW {
            true => self.micros_per_step.min(BUDGET_MICROS),
            false => rows as u64 * self.micros_per_row,
        };
        Cut {
            parts: step.div_ceil(BUDGET_MICROS).clamp(1, dispatches.max(1) as u64) as usize,
            steps: (BUDGET_MICROS / step.max(1)).clamp(1, steps.max(1) as u64) as usize,
        }
    }

    /// Takes note that `steps` steps of `rows` token rows took `micros`; of `live` rows that are no padding, `prompt` belong to
    /// prompts.
    pub(super) fn learn(&mut self, rows: usize, live: usize, prompt: usize, steps: usize, micros: u64) {
        // Halfway to what was seen, so that one hiccup does not cut the next steps to shreds.
        let towards = |known: u64, seen: u64| if known == 0 { seen } else { (known + seen).div_ceil(2) };
        match rows < DECODE_BELOW {
            true => self.micros_per_step = towards(self.micros_per_step, micros / steps.max(1) as u64),
            false => {
                self.micros_per_row = towards(self.micros_per_row, micros / (rows * steps.max(1)) as u64);
                if 2 * prompt > live {
                    let seen = (micros / live as u64).max(1);
                    self.micros_per_prompt_row = towards(self.micros_per_prompt_row, seen);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_steps_are_cut_and_short_ones_are_not() {
        let mut budget = Budget::default();
        assert_eq!(budget.micros_per_prompt_row(), None);
        assert_eq!(budget.cut(1, 4, 250), Cut { parts: 1, steps: 4 });
        assert_eq!(budget.cut(128, 1, 250), Cut { parts: 13, steps: 1 });
        assert_eq!(budget.cut(100_000, 1, 250), Cut { parts: 250, steps: 1 });
        for _ in 0..20 {
            budget.learn(512, 500, 499, 1, 10_240);
            budget.learn(1, 1, 0, 4, 160_000);
        }
        assert_eq!(budget.cut(512, 1, 250), Cut { parts: 1, steps: 1 });
        // Of 500 rows that are no padding.
        assert_eq!(budget.micros_per_prompt_row(), Some(20));
        budget.learn(64, 64, 0, 1, 640_000);
        assert_eq!(budget.micros_per_prompt_row(), Some(20), "a step of decoding says nothing of prompts");
        // 40 ms a step: two fit.
        assert_eq!(budget.cut(1, 16, 250), Cut { parts: 1, steps: 2 });
    }
}
