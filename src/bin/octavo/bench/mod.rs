//! `octavo bench`: one file for each kind of measurement. Times are reported, never judged.

mod device;
mod latency;
mod model;
mod report;
mod scheduler;
mod serve_sim;
#[cfg(feature = "structured")]
mod structured;
mod suite;
mod throughput;

use crate::Outcome;
use clap::Subcommand;
use octavo::error::Result;

const EXAMPLES: &str = "\
Examples:
  One model on this machine:
  octavo bench decode --model M --tokens 64             one sequence, tokens per second
  octavo bench decode --model M --sequences 8           eight at once, all their tokens together
  octavo bench prefill --model M --prompt-tokens 128    reading a prompt
  octavo bench decode --model M --profile               which kernel takes the time
  octavo bench throughput --model M --num-seqs 64       many requests at once, as fast as they go
  octavo bench latency --model M --batch 4              one batch, from its start to its end
  octavo bench serve-sim --model M --rate 2             requests that come by chance, and how long they wait

  What scheduling does, without a model, in seconds:
  octavo bench suite --out bench                        five comparisons: a table, JSON and a picture of each
  octavo bench serve-sim --mock --rate 12               what a setting does to waiting times
  octavo bench scheduler                                what the scheduler itself costs, and how that grows
  octavo bench structured --model M                     what output that fits a grammar costs on the processor";

#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum Command {
    /// Generated tokens per second, for one sequence or several at once
    Decode(model::BenchArgs),
    /// Prompt tokens per second
    Prefill(model::BenchArgs),
    /// Many requests at once: total and output tokens per second
    Throughput(throughput::Args),
    /// A single batch: how long it takes, and how evenly
    Latency(latency::Args),
    /// Requests that arrive over time: waiting times, and how many are served in time
    ServeSim(serve_sim::Args),
    /// Five comparisons that show what batching, paging, caching, drafting and chunking bring
    Suite(suite::Args),
    /// What the scheduler itself costs for each step
    Scheduler(scheduler::Args),
    /// What a grammar costs: a mask for each token, and compiling
    #[cfg(feature = "structured")]
    Structured(structured::Args),
}

pub fn run(command: &Command) -> Result<Outcome> {
    match command {
        Command::Decode(args) => model::run(args, model::Phase::Decode),
        Command::Prefill(args) => model::run(args, model::Phase::Prefill),
        Command::Throughput(args) => throughput::run(args),
        Command::Latency(args) => latency::run(args),
        Command::ServeSim(args) => serve_sim::run(args),
        Command::Suite(args) => suite::run(args),
        Command::Scheduler(args) => scheduler::run(args),
        #[cfg(feature = "structured")]
        Command::Structured(args) => structured::run(args),
    }
}
