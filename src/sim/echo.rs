//! A runner that answers at once and keeps nothing: what the scheduler alone costs.

use crate::runner::{Capacity, ModelRunner, RunError, SampledToken, StepResult, Wait};
use crate::sched::plan::StepPlan;
use std::collections::VecDeque;

/// Every row yields the same token for each of its steps. Allocates nothing once its lists have grown.
#[derive(Debug)]
pub struct EchoRunner {
    capacity: Capacity,
    results: VecDeque<StepResult>,
    spare: Vec<StepResult>,
}

/// The token that it always yields.
pub const ECHO: crate::base::TokenId = 1;

impl EchoRunner {
    /// With these limits, of which it checks none.
    pub fn new(capacity: Capacity) -> Self {
        Self { capacity, results: VecDeque::new(), spare: Vec::new() }
    }
}

impl ModelRunner for EchoRunner {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), RunError> {
        let mut result = self.spare.pop().unwrap_or_default();
        result.clear();
        result.epoch = plan.epoch;
        let yields = |seq, slot| SampledToken { seq, slot, token: Ok(ECHO), logprob: None };
        result.tokens.extend(plan.prefill.iter().filter(|chunk| chunk.last).map(|row| yields(row.seq, row.slot)));
        for _ in 0..plan.steps {
            result.tokens.extend(plan.decode.iter().map(|row| yields(row.seq, row.slot)));
        }
        self.results.push_back(result);
        Ok(())
    }

    fn poll(&mut self, _: Wait, result: &mut StepResult) -> Result<bool, RunError> {
        let Some(oldest) = self.results.pop_front() else { return Ok(false) };
        self.spare.push(std::mem::replace(result, oldest));
        Ok(true)
    }
}
