//! The share of tokens found in the prefix cache, over the latest look-ups.

use std::collections::VecDeque;

/// Look-ups that count as recent; the number that vLLM's log line uses.
pub const RECENT_LOOKUPS: u64 = 1000;

/// Sums over about the latest [`RECENT_LOOKUPS`] look-ups: those of a step come and go together.
#[derive(Clone, Debug, Default)]
pub struct RecentHits {
    steps: VecDeque<Lookups>,
    sum: Lookups,
}

/// Look-ups of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lookups {
    lookups: u64,
    queried: u64,
    found: u64,
}

impl RecentHits {
    /// A step looked up `queried` tokens in `lookups` look-ups and found `found` of them.
    pub fn add(&mut self, lookups: u64, queried: u64, found: u64) {
        self.steps.push_back(Lookups { lookups, queried, found });
        self.sum.lookups += lookups;
        self.sum.queried += queried;
        self.sum.found += found;
        while self.sum.lookups > RECENT_LOOKUPS && self.steps.len() > 1 {
            let Some(old) = self.steps.pop_front() else { break };
            self.sum.lookups -= old.lookups;
            self.sum.queried -= old.queried;
            self.sum.found -= old.found;
        }
    }

    /// Tokens found of the tokens looked up; 0 without look-ups.
    pub fn rate(&self) -> f64 {
        super::share(self.sum.found, self.sum.queried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_lookups_are_forgotten() {
        let mut recent = RecentHits::default();
        assert_eq!(recent.rate(), 0.0);
        for _ in 0..RECENT_LOOKUPS / 10 {
            recent.add(10, 100, 0);
        }
        assert_eq!(recent.rate(), 0.0);
        for _ in 0..RECENT_LOOKUPS / 20 {
            recent.add(10, 100, 100);
        }
        assert_eq!(recent.rate(), 0.5);
        for _ in 0..RECENT_LOOKUPS / 10 {
            recent.add(10, 100, 75);
        }
        assert_eq!(recent.rate(), 0.75);
        assert_eq!(recent.steps.len() as u64, RECENT_LOOKUPS / 10);
    }

    #[test]
    fn one_large_step_is_kept() {
        let mut recent = RecentHits::default();
        recent.add(2 * RECENT_LOOKUPS, 8, 2);
        assert_eq!(recent.rate(), 0.25);
        recent.add(1, 4, 4);
        assert_eq!(recent.rate(), 1.0);
    }
}
