//! `octavo bench latency`: one batch from its start to its end, several times.

use super::device::{Batching, Device, refuse_trace};
use super::report::{Table, number};
use super::throughput::ID_LIMIT;
use crate::Outcome;
use crate::options::EngineArgs;
use crate::output;
use octavo::error::{Error, Result};
use octavo::sampling::SamplingParams;
use octavo::sched::SchedulerConfig;
use octavo::sim::{Arrivals, Lengths, Slo, Spread, Summary, Workload};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  octavo bench latency --model M                                          one request, 32 tokens in, 32 out
  octavo bench latency --model M --batch 8 --input-len 128 --output-len 64 --repeats 10

The prefix cache is off, so that each repeat computes everything. One more run before the first is not counted.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    /// Requests in the batch
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: usize,
    /// Prompt tokens: 128, or 100..1024, or lognormal:MEDIAN,SIGMA,MOST
    #[arg(long, value_name = "LENGTHS", default_value = "32")]
    input_len: Lengths,
    /// Tokens to generate, in the same way
    #[arg(long, value_name = "LENGTHS", default_value = "32")]
    output_len: Lengths,
    /// Measurements
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeats: usize,
    /// Decides lengths and ids
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    if args.batch == 0 || args.repeats == 0 {
        return Err(Error::config(format!(
            "--batch is {} and --repeats {}, but both must be at least 1",
            args.batch, args.repeats
        )));
    }
    refuse_trace(&args.engine)?;
    let mut device = Device::load(&args.engine)?;
    let config = SchedulerConfig { prefix_cache: false, host_cache: false, ..device.scheduling()? };
    let workload = Workload {
        requests: args.batch,
        input: args.input_len,
        output: args.output_len,
        arrivals: Arrivals::AtOnce,
        shared_prefix: 0,
        id_limit: ID_LIMIT.min(device.vocab_size()?),
        params: SamplingParams::default(),
        seed: args.seed,
    };
    let (mut batch, mut first, mut each) = (Vec::new(), Vec::new(), Vec::new());
    for repeat in 0..=args.repeats {
        let run = device.run(config.clone(), workload.sequences(), Batching::Continuous)?;
        if repeat > 0 {
            batch.push(run.micros as f64 / 1e3);
            first.push(Summary::of(&run, &Slo::default(), |_| true).ttft_ms.max);
            each.extend(run.timelines.iter().filter_map(octavo::sim::Timeline::tpot_ms));
        }
    }
    let [batch, first, each] = [batch, first, each].map(Spread::of);
    let _reader = match args.json {
        true => output::write_json(&json!({
            "bench": "latency",
            "device": device.name(),
            "requests": args.batch,
            "repeats": args.repeats,
            "batch_ms": batch,
            "last_first_token_ms": first,
            "tpot_ms": each,
        }))?,
        false => {
            let mut table = Table::new(&["milliseconds", "median", "p99", "mean"]);
            let rows = [("whole batch", &batch), ("until all have a first token", &first), ("each later token", &each)];
            for (name, spread) in rows {
                table.row(vec![name.into(), number(spread.p50), number(spread.p99), number(spread.mean)]);
            }
            output::write(&format!("{} requests, {} repeats, on {}\n{table}", args.batch, args.repeats, device.name()))?
        }
    };
    Ok(Outcome::Success)
}
