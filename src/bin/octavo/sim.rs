//! `octavo sim`: random lives of the scheduler, each call checked; for long runs and for replaying a finding.

use crate::{Outcome, output};
use clap::Args as ClapArgs;
use indicatif::{ProgressBar, ProgressStyle};
use octavo::error::Result;
use octavo::sim::{Report, Scenario, simulate};
use serde_json::json;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  octavo sim                              a hundred thousand steps
  octavo sim --steps 10000000 --seed 7    a long run
  octavo sim --seed 7 --scenario 123      scenario 123 of that seed alone, as a finding names it

A scenario is a random setting of everything (policy, preemption, chunks, prefix cache, host memory, run-ahead, windows,
pool sizes) and random requests, forks, cancels, pauses, resets and lost devices on a device that exists in numbers only. A
step is one call that changes the scheduler. After each one: the scheduler's invariants, no block read that was not written
for this context, none written while shared, no token other than the request yields alone, nobody overtaken by less
urgent ones, something left that can move; at the end no block lost and all counters right.

Exit status 1 if anything did not hold; the line that says so has the command to replay it.";

#[derive(ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Steps to do at least; the last scenario runs to its end
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    steps: u64,
    /// Decides everything
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Run this scenario alone, and show its settings
    #[arg(long, value_name = "K")]
    scenario: Option<u64>,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let start = Instant::now();
    let report = match args.scenario {
        Some(number) => {
            eprintln!("{:#?}", Scenario::new(args.seed, number));
            simulate(args.seed, number, 0, &mut |_| ())
        }
        None => {
            let style = ProgressStyle::with_template("{spinner} [{bar:30}] {pos}/{len} steps, {eta} left")
                .expect("the template is well-formed")
                .progress_chars("=> ");
            let bar = ProgressBar::new(args.steps).with_style(style);
            let report = simulate(args.seed, 0, args.steps, &mut |report| bar.set_position(report.steps));
            bar.finish_and_clear();
            report
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    let _reader = match args.json {
        true => output::write_json(&json!({"report": report, "seconds": seconds}))?,
        false => output::write(&summary(&report, seconds))?,
    };
    Ok(if report.violation.is_none() { Outcome::Success } else { Outcome::Failure })
}

fn summary(report: &Report, seconds: f64) -> String {
    let tally = &report.tally;
    let mut text = format!(
        "{} steps in {} scenarios, {} sequences ({} forks), {} tokens, {} submissions; {} preemptions, {} swaps, {} saves, \
         {} loads, {} copies, {} hit tokens ({} from the host), {} evictions, {} cancels, {} resets, {} pauses, {} losses; \
         {seconds:.1} s; {}\n",
        report.steps,
        report.scenarios,
        tally.sequences,
        tally.forks,
        tally.tokens,
        tally.submissions,
        tally.preemptions,
        tally.swaps,
        tally.saves,
        tally.loads,
        tally.copies,
        tally.hit_tokens,
        tally.host_tokens,
        tally.evictions,
        tally.cancels,
        tally.resets,
        tally.pauses,
        tally.losses,
        if report.violation.is_none() { "everything held" } else { "VIOLATION" },
    );
    if let Some(violation) = &report.violation {
        for call in &violation.calls {
            text += &format!("  {call}\n");
        }
        text += &format!(
            "{}\n  in step {} of scenario {}; the calls before are above\n  replay: octavo sim --seed {} --scenario {}\n",
            violation.what, violation.step, violation.scenario, report.seed, violation.scenario
        );
    }
    text
}
