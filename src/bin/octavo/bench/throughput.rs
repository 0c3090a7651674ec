//! `octavo bench throughput`: nano-vllm's workload. Seeded lengths and token ids, all requests at once, no stop tokens; what
//! counts is how soon all are done.

use super::device::{Batching, Device};
use super::report::{number, totals};
use crate::Outcome;
use crate::options::EngineArgs;
use crate::output;
use octavo::error::Result;
use octavo::sampling::SamplingParams;
use octavo::sim::{Arrivals, Lengths, Slo, Summary, Workload};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  octavo bench throughput --model M                                     256 requests, 100 to 1024 tokens in and out
  octavo bench throughput --model M --num-seqs 32 --input-len 64..128 --output-len 32
                                                                        a smaller one of the same kind
  octavo bench throughput --model M --max-num-seqs 64 --json            one line of JSON

One request runs first as a warm-up and is not counted.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    /// Requests
    #[arg(long, value_name = "N", default_value_t = 256)]
    num_seqs: usize,
    /// Prompt tokens: 128, or 100..1024, or lognormal:MEDIAN,SIGMA,MOST
    #[arg(long, value_name = "LENGTHS", default_value = "100..1024")]
    input_len: Lengths,
    /// Tokens to generate, in the same way
    #[arg(long, value_name = "LENGTHS", default_value = "100..1024")]
    output_len: Lengths,
    /// Sampling temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.6)]
    temperature: f32,
    /// Decides lengths, ids and draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

/// nano-vllm draws ids below this.
pub const ID_LIMIT: u32 = 10_000;

pub fn run(args: &Args) -> Result<Outcome> {
    let params = SamplingParams { temperature: args.temperature, ..SamplingParams::default() };
    params.validate()?;
    let mut device = Device::load(&args.engine)?;
    let config = device.scheduling()?;
    let workload = Workload {
        requests: args.num_seqs,
        input: args.input_len,
        output: args.output_len,
        arrivals: Arrivals::AtOnce,
        shared_prefix: 0,
        id_limit: ID_LIMIT.min(device.vocab_size()?),
        params,
        seed: args.seed,
    };
    let warm_up = Workload {
        requests: 1,
        input: Lengths::Fixed(16),
        output: Lengths::Fixed(8),
        seed: !args.seed,
        ..workload.clone()
    };
    device.run(config.clone(), warm_up.sequences(), Batching::Continuous)?;
    let run = device.run_traced(config, workload.sequences(), args.engine.trace.as_deref())?;
    let summary = Summary::of(&run, &Slo::default(), |_| true);
    let _reader = match args.json {
        true => output::write_json(&json!({
            "bench": "throughput",
            "device": device.name(),
            "summary": summary,
            "scheduler": {"steps": run.stats.steps, "preemptions": run.stats.preemptions},
        }))?,
        false => output::write(&format!(
            "{}total {} tok/s, output {} tok/s ({} requests at once on average) on {}\n",
            totals(&summary),
            number(summary.total_tokens_per_second),
            number(summary.output_tokens_per_second),
            number(run.mean_over_time(|sample| sample.running as f64)),
            device.name()
        ))?,
    };
    Ok(Outcome::Success)
}
