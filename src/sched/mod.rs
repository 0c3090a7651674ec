//! Decides what each step computes: admission, the token budget, run-ahead, preemption, stops. Pure data and
//! arithmetic: no GPU, threads, clocks or random numbers, so the same calls always give the same plans.
//!
//! The engine drives it in a circle: [`Scheduler::schedule`] fills a [`plan::StepPlan`], a
//! [`ModelRunner`](crate::runner::ModelRunner) runs it, [`Scheduler::commit`] takes the results. Up to
//! `max_in_flight` plans may be under way: tokens that the host has not seen yet are counted, never guessed.
//!
//! ```
//! use octavo::base::RequestId;
//! use octavo::runner::mock::{MockOptions, MockRunner};
//! use octavo::runner::{ModelRunner, StepResult, Wait};
//! use octavo::sampling::{SamplingParams, SamplingRow};
//! use octavo::sched::{NewSequence, Scheduler, SchedulerConfig, SchedEvent, plan::StepPlan};
//!
//! let mut runner = MockRunner::new(MockOptions::default());
//! let config = SchedulerConfig { max_num_seqs: 4, ..SchedulerConfig::for_capacity(&runner.capacity()) };
//! let mut scheduler = Scheduler::new(config, runner.capacity())?;
//! let sampling = SamplingRow::new(&SamplingParams::greedy(5), 0, &[]);
//! scheduler.add(NewSequence::new(RequestId(1), vec![1, 2, 3], 5, sampling), &mut Vec::new())?;
//! let (mut plan, mut result, mut events) = (StepPlan::default(), StepResult::default(), Vec::new());
//! while scheduler.has_work() {
//!     while scheduler.schedule(&mut plan, &mut events) {
//!         runner.submit(&plan).unwrap();
//!     }
//!     if runner.poll(Wait::AtMost(std::time::Duration::from_secs(1)), &mut result).unwrap() {
//!         scheduler.commit(&result, &mut events);
//!     }
//! }
//! assert_eq!(events.iter().filter(|event| matches!(event, SchedEvent::Token { .. })).count(), 5);
//! # Ok::<(), octavo::error::Error>(())
//! ```

mod admission;
mod blocks;
mod check;
mod commit;
mod config;
mod control;
mod event;
mod guided;
mod hits;
pub mod plan;
mod preemption;
mod queue;
mod scheduler;
mod sequence;
mod stats;
mod step;
#[cfg(test)]
mod tests;

pub use config::{Policy, Preemption, SchedulerConfig};
pub use control::Pause;
pub use event::{Estimates, FinishReason, PreemptReason, Released, SchedEvent};
pub use scheduler::Scheduler;
pub use sequence::NewSequence;
pub use stats::SchedulerStats;
