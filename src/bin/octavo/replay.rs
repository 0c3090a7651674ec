//! `octavo replay`: whether the scheduler still decides what it decided when a trace was recorded.

use crate::Outcome;
use crate::output::{self, milliseconds};
use octavo::error::Result;
use octavo::trace::{Difference, Replayed, Summary, TraceReader, replay};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  octavo generate --model M --prompts prompts.jsonl --trace run.json
  octavo replay run.json

All calls of the recorded run are made again, with the recorded results, on a fresh scheduler and without a device: every
plan must come out as the same text. Exit code 0 if so, 1 at the first difference. A trace that stops in the middle, as
that of a killed process does, is replayed as far as it goes.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A file that `--trace` wrote
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let mut reader = TraceReader::open(&args.trace)?;
    let replayed = replay(&mut reader)?;
    let _reader = match (&replayed, args.json) {
        (Replayed::Same(summary), true) => output::write_json(&json!({
            "same": true,
            "calls": summary.calls,
            "plans": summary.plans,
            "steps": summary.steps,
            "sequences": summary.sequences,
            "tokens": summary.tokens,
            "preemptions": summary.preemptions,
            "span_ms": milliseconds(summary.span),
            "truncated": summary.truncated,
        }))?,
        (Replayed::Differs(difference), true) => output::write_json(&json!({
            "same": false,
            "plan": difference.plans + 1,
            "call": difference.calls + 1,
            "at_ms": milliseconds(difference.at),
            "recorded": difference.recorded,
            "replayed": difference.replayed,
        }))?,
        (Replayed::Same(summary), false) => output::write(&praise(summary))?,
        (Replayed::Differs(difference), false) => output::write(&complaint(difference))?,
    };
    if matches!(replayed, Replayed::Same(Summary { truncated: true, .. })) {
        eprintln!("warning: {} stops in the middle; replayed as far as it goes", args.trace.display());
    }
    Ok(if matches!(replayed, Replayed::Same(_)) { Outcome::Success } else { Outcome::Failure })
}

fn praise(summary: &Summary) -> String {
    format!(
        "the same: all {} plans ({} steps, {} sequences, {} tokens, {} preemptions; {:.1} ms of recorded time, {} calls)\n",
        summary.plans,
        summary.steps,
        summary.sequences,
        summary.tokens,
        summary.preemptions,
        milliseconds(summary.span),
        summary.calls
    )
}

fn complaint(difference: &Difference) -> String {
    format!(
        "different: plan {} (call {}, at {:.3} ms), after {} that were the same\n  recorded: {}\n  replayed: {}\n",
        difference.plans + 1,
        difference.calls + 1,
        milliseconds(difference.at),
        difference.plans,
        difference.recorded,
        difference.replayed
    )
}
