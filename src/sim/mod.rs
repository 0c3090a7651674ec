//! Tries the scheduler out: a driver for measurements, and a random life in which everything is checked.
//!
//! [`Driver`] runs requests through a scheduler and any [`TimedRunner`]: the mock in virtual time, a GPU in real time.
//! [`simulate`] runs one random [`Scenario`] after another on the mock and stops at the first thing that does not hold; seed and
//! scenario number replay it.
//!
//! ```
//! let report = octavo::sim::simulate(7, 0, 2000, &mut |_| ());
//! assert!(report.violation.is_none(), "{:?}", report.violation);
//! assert!(report.steps >= 2000);
//! ```

mod driver;
mod echo;
mod ledger;
mod machine;
mod random;
mod scenario;
mod summary;
mod timed;
mod workload;

pub use driver::{Driver, Run, Sample, Timeline};
pub use echo::{ECHO, EchoRunner};
pub use ledger::Tally;
pub use random::Random;
pub use scenario::Scenario;
pub use summary::{Slo, Spread, Summary, ratio};
pub use timed::{RealTime, TimedRunner, run_error};
pub use workload::{Arrivals, Lengths, Workload, read_trace};

use machine::Progress;
use serde::Serialize;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a simulation came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Of all scenarios.
    pub seed: u64,
    /// Scenarios that were lived.
    pub scenarios: u64,
    /// Calls that changed a scheduler, with all checks after each.
    pub steps: u64,
    /// Sums over them.
    pub tally: Tally,
    /// The first thing that did not hold.
    pub violation: Option<Violation>,
}

/// Something that did not hold, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which scenario of the seed.
    pub scenario: u64,
    /// Which call of it, counted from 1.
    pub step: u64,
    /// The calls up to and with that one, oldest first; a few dozen at most.
    pub calls: Vec<String>,
    /// What is wrong.
    pub what: String,
}

/// Lives whole scenarios of `seed`, from number `first` on, until at least `steps` steps are done or something does not hold.
/// `watch` sees the report after each scenario. Panics of the scheduler are caught and reported.
pub fn simulate(seed: u64, first: u64, steps: u64, watch: &mut dyn FnMut(&Report)) -> Report {
    let mut report = Report { seed, ..Report::default() };
    for scenario in first.. {
        let mut progress = Progress::default();
        let life = catch_unwind(AssertUnwindSafe(|| machine::live(seed, scenario, &mut progress)));
        let outcome = life.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(format!("panic: {}", text.unwrap_or("without a message")))
        });
        report.scenarios += 1;
        report.steps += progress.steps;
        report.tally.add(&progress.tally);
        report.violation =
            outcome.err().map(|what| Violation { scenario, step: progress.steps, calls: progress.calls.into(), what });
        watch(&report);
        if report.violation.is_some() || report.steps >= steps {
            break;
        }
    }
    report
}
