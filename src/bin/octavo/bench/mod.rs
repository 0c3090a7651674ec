//! `octavo bench`: one file for each kind of measurement. Times are reported, never judged.

mod context;
mod device;
mod drive;
mod encode;
mod kernels;
mod latency;
mod loaded;
mod model;
mod prefix;
mod report;
mod scheduler;
mod serve_sim;
mod stand_in;
mod start;
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
  octavo bench batch --model M --sequences 8            eight at once, all their tokens together
  octavo bench prefill --model M --prompt-tokens 128    reading a prompt
  octavo bench decode --model M --profile               which kernel takes the time
  octavo bench start --model M                          from nothing to the first token
  octavo bench prefix --model M                         what a prompt costs whose beginning is known
  octavo bench context --model M                        how decoding slows down with the context
  octavo bench throughput --model M --num-seqs 64       many requests at once, as fast as they go
  octavo bench latency --model M --batch 4              one batch, from its start to its end
  octavo bench serve-sim --model M --rate 2             requests that come by chance, and how long they wait

  One device, with a model or with the shapes of one:
  octavo bench kernels                                  each kernel against what the device can do at best
  octavo bench encode                                   what a dispatch and a step cost the host

  What scheduling does, without a model, in seconds:
  octavo bench suite --out bench                        five comparisons: a table, JSON and a picture of each
  octavo bench serve-sim --mock --rate 12               what a setting does to waiting times
  octavo bench scheduler                                what the scheduler itself costs, and how that grows
  octavo bench structured --model M                     what output that fits a grammar costs on the processor";

#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum Command {
    /// Generated tokens per second of one sequence
    Decode(model::BenchArgs),
    /// Prompt tokens per second
    Prefill(model::BenchArgs),
    /// Generated tokens per second of several sequences at once
    Batch(model::BenchArgs),
    /// Time to the first token of a prompt, cold and with its beginning in the prefix cache
    Prefix(prefix::Args),
    /// Time of a decode step against the length of the context
    Context(context::Args),
    /// From nothing to the first token, by stages
    Start(start::Args),
    /// Every kernel of a step by itself: time, speed, share of the device's peak
    Kernels(kernels::Args),
    /// What encoding costs the host, per dispatch and per step
    Encode(encode::Args),
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
        Command::Batch(args) => model::run(args, model::Phase::Batch),
        Command::Prefix(args) => prefix::run(args),
        Command::Context(args) => context::run(args),
        Command::Start(args) => start::run(args),
        Command::Kernels(args) => kernels::run(args),
        Command::Encode(args) => encode::run(args),
        Command::Throughput(args) => throughput::run(args),
        Command::Latency(args) => latency::run(args),
        Command::ServeSim(args) => serve_sim::run(args),
        Command::Suite(args) => suite::run(args),
        Command::Scheduler(args) => scheduler::run(args),
        #[cfg(feature = "structured")]
        Command::Structured(args) => structured::run(args),
    }
}
