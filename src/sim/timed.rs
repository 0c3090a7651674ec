//! Runners with a clock, so that one driver measures the mock in virtual time and a GPU in real time.

use crate::error::{Error, ErrorKind};
use crate::runner::mock::MockRunner;
use crate::runner::{Capacity, Costs, ModelRunner, RunError, StepResult, Wait};
use crate::sched::plan::StepPlan;
use std::time::{Duration, Instant};

/// A runner that knows what time it is.
pub trait TimedRunner: ModelRunner {
    /// Microseconds since the start.
    fn now_micros(&self) -> u64;

    /// Lets time pass until then; returns at once if that is over.
    fn wait_until(&mut self, micros: u64);
}

impl TimedRunner for MockRunner {
    fn now_micros(&self) -> u64 {
        MockRunner::now_micros(self)
    }

    fn wait_until(&mut self, micros: u64) {
        self.advance(micros.saturating_sub(MockRunner::now_micros(self)));
    }
}

/// Any runner, by the clock on the wall.
#[derive(Debug)]
pub struct RealTime<R> {
    runner: R,
    start: Instant,
}

impl<R> RealTime<R> {
    /// The clock starts now.
    pub fn new(runner: R) -> Self {
        Self { runner, start: Instant::now() }
    }

    /// The runner again.
    pub fn into_inner(self) -> R {
        self.runner
    }
}

impl<R: ModelRunner> ModelRunner for RealTime<R> {
    fn capacity(&self) -> Capacity {
        self.runner.capacity()
    }

    fn costs(&self) -> Costs {
        self.runner.costs()
    }

    fn prompt_limit(&self) -> u32 {
        self.runner.prompt_limit()
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), RunError> {
        self.runner.submit(plan)
    }

    fn poll(&mut self, wait: Wait, result: &mut StepResult) -> Result<bool, RunError> {
        self.runner.poll(wait, result)
    }
}

impl<R: ModelRunner> TimedRunner for RealTime<R> {
    fn now_micros(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn wait_until(&mut self, micros: u64) {
        std::thread::sleep(Duration::from_micros(micros.saturating_sub(self.now_micros())));
    }
}

/// What a failing runner means to a caller that does not recover.
pub fn run_error(error: RunError) -> Error {
    let kind = match error {
        RunError::DeviceLost(_) => ErrorKind::DeviceLost,
        RunError::OutOfMemory(_) => ErrorKind::Memory,
        RunError::Bug(_) => ErrorKind::Bug,
    };
    Error::new(kind, error)
}
