//! The command line `octavo`: one file per subcommand. Results go to stdout; progress, summaries and errors to stderr.
//!
//! Exit codes: 0 all went well, 1 something failed, 2 the command or its options are wrong.

mod bench;
mod chat;
mod constraints;
mod doctor;
mod eval;
mod generate;
mod inspect;
mod interrupt;
mod logprob_view;
mod options;
mod output;
mod progress;
mod prompts;
mod replay;
mod results;
mod sampling;
mod sim;
mod trace;

use clap::{Parser, Subcommand};
use octavo::error::ErrorKind;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  Ask a model file one question, and see the answer as it is written:
      octavo chat --model SmolLM2-135M-Instruct.Q4_1.gguf --message \"Why is the sky blue?\"
  Talk with a model in several turns:
      octavo chat --model ./Qwen3-0.6B
  Continue a text, with sampling:
      octavo generate --model ./Qwen3-0.6B --prompt \"Once upon a time\" --temperature 0.8
  Run a file of prompts together, one JSON line for each result:
      octavo generate --model ./Qwen3-0.6B --prompts prompts.jsonl --json > results.jsonl
  See what a model needs before you load it:
      octavo inspect ./Qwen3-0.6B
  See which GPUs there are and whether octavo works on them:
      octavo doctor

A MODEL is a Hugging Face folder (config.json and safetensors), a .gguf file, or a hub id such as
Qwen/Qwen3-0.6B, which is downloaded once. A single GGUF file of a hub repository is named
organisation/name:file.gguf.

Environment:
  OCTAVO_LOG        log filter, such as `info` or `octavo=debug`; the default is `warn`
  OCTAVO_DISABLE    device features to leave unused: f16, int64, subgroups, timestamps, matrix
  OCTAVO_CACHE_DIR  folder for what drivers compile, kept for the next start; empty keeps nothing
  OCTAVO_TUNE=0     use the usual shape of products instead of measuring which is the fastest
  OCTAVO_SHADER_DIR folder to read WGSL from instead of the copy in the program
  HF_HOME           where models of the hub are kept; HF_HUB_OFFLINE=1 forbids downloads";

/// Runs language models on any GPU: continuous batching, paged KV cache, WGSL kernels.
#[derive(Parser)]
#[command(name = "octavo", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continue one prompt or a file of prompts
    Generate(generate::Args),
    /// Talk with a model
    Chat(chat::Args),
    /// Measure a model
    #[command(subcommand)]
    Eval(eval::Command),
    /// Measure speed
    #[command(subcommand)]
    Bench(bench::Command),
    /// Try the scheduler out: random requests, every call checked
    Sim(sim::Args),
    /// Draw what the scheduler did in a recorded run
    #[command(subcommand)]
    Trace(trace::Command),
    /// See whether the scheduler still makes the plans of a recorded run
    Replay(replay::Args),
    /// Show what a model is made of and what it needs
    Inspect(inspect::Args),
    /// Show the graphics adapters and test every kernel on them
    Doctor(doctor::Args),
}

/// How a command that ran to its end went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Success,
    /// Some part failed and has been reported.
    Failure,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Graphics libraries report at `warn` what is of no concern to users.
    let filter = env_logger::Env::default().filter_or("OCTAVO_LOG", "warn,wgpu_core=error,wgpu_hal=error,naga=error");
    env_logger::Builder::from_env(filter).format_target(false).format_timestamp(None).init();
    let outcome = match cli.command {
        Command::Generate(args) => generate::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Eval(command) => eval::run(command),
        Command::Bench(command) => bench::run(&command),
        Command::Sim(args) => sim::run(&args),
        Command::Trace(command) => trace::run(&command),
        Command::Replay(args) => replay::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    };
    match outcome {
        Ok(Outcome::Success) => ExitCode::SUCCESS,
        Ok(Outcome::Failure) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(if error.kind() == ErrorKind::Config { 2 } else { 1 })
        }
    }
}
