//! Keeps submissions as short as [`EngineOptions::submit_budget`](crate::config::EngineOptions::submit_budget) asks: a step that
//! would run longer is submitted in pieces, several steps are spread over several submissions, and prompts come in chunks
//! whose single dispatches are not too long.

use std::time::Duration;

/// Guess for a token row before anything was measured: a software adapter with a small model.
const FIRST_GUESS_MICROS: u64 = 10_000;
/// Rows below which a step is decoding: bound by the weights, not by the rows.
const DECODE_BELOW: usize = 16;
/// How much longer than the mean the longest dispatch of a step takes. Gate and up of a dense layer are a third of its time
/// and one of five to nine dispatches.
const LONGEST_DISPATCH: u64 = 4;
/// Fewest prompt rows of a step: with fewer it would count as decoding, and nothing could be learnt of prompts any more.
const FEWEST_ROWS: u64 = DECODE_BELOW as u64;

/// What is known about the speed of this device, and how long a submission may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// What a submission shall take.
    target_micros: u64,
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

impl Budget {
    /// A device of which nothing is known.
    pub(super) fn new(target: Duration) -> Self {
        let target_micros = target.as_micros().try_into().unwrap_or(u64::MAX).max(1);
        Self { target_micros, micros_per_row: FIRST_GUESS_MICROS, micros_per_prompt_row: 0, micros_per_step: 0 }
    }

    /// Time of a prompt's token row, once that was measured.
    pub(super) fn micros_per_prompt_row(&self) -> Option<u64> {
        Some(self.micros_per_prompt_row).filter(|micros| *micros > 0)
    }

    /// Most rows of a prompt in a step of `dispatches` dispatches, each of which shall keep to the target by itself.
    pub(super) fn prompt_rows(&self, dispatches: usize) -> u64 {
        let Some(micros) = self.micros_per_prompt_row() else { return u64::MAX };
        let rows = self.target_micros.saturating_mul(dispatches as u64) / (LONGEST_DISPATCH * micros);
        (rows / FEWEST_ROWS * FEWEST_ROWS).max(FEWEST_ROWS)
    }

    /// How to spread `steps` steps of `rows` token rows and `dispatches` dispatches each.
    pub(super) fn cut(&self, rows: usize, steps: usize, dispatches: usize) -> Cut {
        let step = match rows < DECODE_BELOW {
            true => self.micros_per_step,
            false => rows as u64 * self.micros_per_row,
        };
        Cut {
            parts: step.div_ceil(self.target_micros).clamp(1, dispatches.max(1) as u64) as usize,
            steps: (self.target_micros / step.max(1)).clamp(1, steps.max(1) as u64) as usize,
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

    const USUAL: Duration = Duration::from_millis(100);

    fn learnt(target: Duration) -> Budget {
        let mut budget = Budget::new(target);
        for _ in 0..20 {
            budget.learn(512, 500, 499, 1, 10_240);
            budget.learn(1, 1, 0, 4, 160_000);
        }
        budget
    }

    #[test]
    fn long_steps_are_cut_and_short_ones_are_not() {
        let mut budget = Budget::new(USUAL);
        assert_eq!(budget.micros_per_prompt_row(), None);
        assert_eq!(budget.cut(1, 4, 250), Cut { parts: 1, steps: 4 });
        assert_eq!(budget.cut(128, 1, 250), Cut { parts: 13, steps: 1 });
        assert_eq!(budget.cut(100_000, 1, 250), Cut { parts: 250, steps: 1 });
        budget = learnt(USUAL);
        assert_eq!(budget.cut(512, 1, 250), Cut { parts: 1, steps: 1 });
        // Of 500 rows that are no padding.
        assert_eq!(budget.micros_per_prompt_row(), Some(20));
        budget.learn(64, 64, 0, 1, 640_000);
        assert_eq!(budget.micros_per_prompt_row(), Some(20), "a step of decoding says nothing of prompts");
        // 40 ms a step: two fit.
        assert_eq!(budget.cut(1, 16, 250), Cut { parts: 1, steps: 2 });
    }

    #[test]
    fn steps_and_chunks_follow_what_is_asked_for() {
        let shared = learnt(Duration::from_millis(4));
        // 40 ms a decode step, in tenths.
        assert_eq!(shared.cut(1, 16, 250), Cut { parts: 10, steps: 1 });
        assert_eq!(shared.cut(512, 1, 250), Cut { parts: 3, steps: 1 });
        // 20 us a row; the longest of 250 dispatches takes 4 of them: 4 ms for 12,500 rows.
        assert_eq!(shared.prompt_rows(250), 12_496);
        // Never so few that the step counts as decoding, or a slow moment would be believed for ever.
        assert_eq!(shared.prompt_rows(0), DECODE_BELOW as u64);
        assert_eq!(learnt(USUAL).prompt_rows(250), 312_496);
        assert_eq!(Budget::new(USUAL).prompt_rows(250), u64::MAX);
    }
}
