//! `octavo bench serve-sim`: requests that arrive over time, on a model in real time or on the mock in virtual time.

use super::device::Device;
use super::report::{number, percent, times, totals};
use super::throughput::ID_LIMIT;
use crate::Outcome;
use crate::options::EngineArgs;
use crate::output;
use octavo::error::{Error, Result};
use octavo::runner::mock::MockOptions;
use octavo::sampling::SamplingParams;
use octavo::sched::{NewSequence, SchedulerConfig};
use octavo::sim::{Arrivals, Lengths, Slo, Summary, Workload, read_trace};
use serde_json::json;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  octavo bench serve-sim --mock --rate 12 --slo-ttft-ms 200 --slo-tpot-ms 50
      a device that exists in numbers only, in virtual time: how many of 200 requests are served within the limits
  octavo bench serve-sim --mock --rate 12 --policy phase-split
      the same, prompts strictly before decoding: other waiting times
  octavo bench serve-sim --mock --rate 12 --num-prompts 40 --trace run.json
      the same as a picture: octavo trace render run.json -o run.svg
  octavo bench serve-sim --model M --rate 2 --num-prompts 50 --input-len lognormal:60,0.8,400 --output-len 16..64
      a model, in real time
  octavo bench serve-sim --model M --trace-file arrivals.jsonl
      arrivals as they were recorded, one JSON object a line:
      {\"timestamp\": MILLISECONDS, \"input_length\": TOKENS, \"output_length\": TOKENS}
      and optionally \"hash_ids\": [...] (names of 512-token pieces of the prompt; equal names are equal tokens),
      \"priority\": N (smaller first) and \"deadline\": MILLISECONDS

What is reported:
  TTFT  from arrival to the first token        TPOT  mean time of each later token of a request
  ITL   between two tokens that follow         E2E   from arrival to the last token
  goodput: requests a second that kept every --slo-... limit given
Percentiles are exact, with linear interpolation between ranks.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("model", |arg| arg.required(false).default_value("").hide_default_value(true)))]
pub struct Args {
    /// No model: a device of the given speeds, in virtual time
    #[arg(long, conflicts_with = "model")]
    mock: bool,
    #[command(flatten)]
    engine: EngineArgs,
    /// Requests a second on average, arriving by chance (a Poisson process); 0 lets all come at once
    #[arg(long, value_name = "R", default_value_t = 4.0, allow_negative_numbers = true, conflicts_with = "trace_file")]
    rate: f64,
    /// Arrivals and lengths from a file of JSON lines
    #[arg(long, value_name = "FILE")]
    trace_file: Option<PathBuf>,
    /// Requests
    #[arg(long, value_name = "N", default_value_t = 200, conflicts_with = "trace_file")]
    num_prompts: usize,
    /// Prompt tokens: 128, or 100..1024, or lognormal:MEDIAN,SIGMA,MOST
    #[arg(long, value_name = "LENGTHS", default_value = "lognormal:120,0.8,1000")]
    input_len: Lengths,
    /// Tokens to generate, in the same way
    #[arg(long, value_name = "LENGTHS", default_value = "lognormal:60,0.8,500")]
    output_len: Lengths,
    /// Tokens that all prompts begin with
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_prefix: usize,
    /// Sampling temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Decides lengths, ids and arrivals
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// A request is served well if its first token comes within this
    #[arg(long, value_name = "MS")]
    slo_ttft_ms: Option<f64>,
    /// and each later token takes no longer than this on average
    #[arg(long, value_name = "MS")]
    slo_tpot_ms: Option<f64>,
    /// The mock's time for a prompt token
    #[arg(long, value_name = "US", default_value_t = 100)]
    mock_prefill_us: u64,
    /// The mock's time for a step, whatever its rows
    #[arg(long, value_name = "US", default_value_t = 10_000)]
    mock_step_us: u64,
    /// KV blocks that the mock's host holds for swapping
    #[arg(long, value_name = "N", default_value_t = 0)]
    mock_host_blocks: u32,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

/// The mock's KV blocks and context, unless the engine's options say otherwise.
const MOCK_BLOCKS: usize = 2048;
const MOCK_CONTEXT: usize = 4096;

pub fn run(args: &Args) -> Result<Outcome> {
    if !(args.rate >= 0.0 && args.rate.is_finite()) {
        return Err(Error::config(format!("--rate is {}, but must be requests a second, or 0", args.rate)));
    }
    if !args.mock && args.engine.model.is_empty() {
        return Err(Error::config("there is nothing to run on; name a model with --model, or use --mock"));
    }
    let params = SamplingParams { temperature: args.temperature, ..SamplingParams::default() };
    params.validate()?;
    let mut device = match args.mock {
        true => mock(args)?,
        false => Device::load(&args.engine)?,
    };
    let config = match args.mock {
        true => scheduling(args, device.scheduling()?)?,
        false => device.scheduling()?,
    };
    let requests = requests(args, &params, ID_LIMIT.min(device.vocab_size()?))?;
    let slo = Slo { ttft_ms: args.slo_ttft_ms, tpot_ms: args.slo_tpot_ms };
    let run = device.run_traced(config.clone(), requests, args.engine.trace.as_deref())?;
    let summary = Summary::of(&run, &slo, |_| true);
    let _reader = match args.json {
        true => output::write_json(&json!({
            "bench": "serve-sim",
            "device": device.name(),
            "scheduler": config,
            "slo": slo,
            "summary": summary,
        }))?,
        false => {
            let limits = [("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms)];
            let kept: Vec<String> =
                limits.iter().filter_map(|(name, limit)| Some(format!("{name} <= {} ms", (*limit)?))).collect();
            let goodput = match kept.is_empty() {
                true => String::new(),
                false => format!(
                    "goodput {} requests/s: {} within {}\n",
                    number(summary.goodput),
                    percent(summary.within_slo),
                    kept.join(" and ")
                ),
            };
            output::write(&format!(
                "{} on {}\n{}{goodput}",
                totals(&summary).trim_end(),
                device.name(),
                times(&summary)
            ))?
        }
    };
    Ok(if summary.failed == 0 { Outcome::Success } else { Outcome::Failure })
}

fn mock(args: &Args) -> Result<Device> {
    let engine = &args.engine;
    let small = |name: &str, value: usize| {
        u32::try_from(value).map_err(|_| Error::config(format!("--{name} is {value}, which is too many")))
    };
    let mut options = MockOptions {
        prefill_micros: args.mock_prefill_us,
        step_micros: args.mock_step_us,
        latency_micros: 0,
        ..MockOptions::default()
    };
    options.capacity.vocab_size = ID_LIMIT;
    options.capacity.block_count = small("num-kv-blocks", engine.num_kv_blocks.unwrap_or(MOCK_BLOCKS))?;
    options.capacity.slot_count = small("max-num-seqs", engine.max_num_seqs)?;
    options.capacity.max_batched_tokens = small("max-num-batched-tokens", engine.max_num_batched_tokens)?;
    options.capacity.max_model_len = small("max-model-len", engine.max_model_len.unwrap_or(MOCK_CONTEXT))?;
    options.capacity.max_steps = engine.steps_per_submit;
    options.capacity.host_blocks = args.mock_host_blocks;
    Ok(Device::Mock(options))
}

/// What the engine's options mean on the mock.
fn scheduling(args: &Args, usual: SchedulerConfig) -> Result<SchedulerConfig> {
    let options = args.engine.options()?;
    Ok(SchedulerConfig {
        long_prefill_token_threshold: options.long_prefill_token_threshold,
        chunked_prefill: options.chunked_prefill,
        prefix_cache: options.prefix_cache,
        max_in_flight: if options.sync { 1 } else { usual.max_in_flight },
        policy: options.policy,
        aging_micros: options.aging.as_micros().try_into().unwrap_or(u64::MAX),
        max_num_partial_prefills: options.max_num_partial_prefills,
        max_long_partial_prefills: options.max_long_partial_prefills,
        watermark: options.watermark,
        preemption: options.preemption,
        host_cache: options.host_cache && options.prefix_cache && args.mock_host_blocks > 0,
        ..usual
    })
}

fn requests(args: &Args, params: &SamplingParams, id_limit: u32) -> Result<Vec<NewSequence>> {
    if let Some(path) = &args.trace_file {
        return open(path).and_then(|file| {
            let named = |error: Error| error.context(path.display());
            read_trace(BufReader::new(file), id_limit, params, args.seed).map_err(named)
        });
    }
    let arrivals = match args.rate {
        0.0 => Arrivals::AtOnce,
        per_second => Arrivals::Poisson { per_second },
    };
    let workload = Workload {
        requests: args.num_prompts,
        input: args.input_len,
        output: args.output_len,
        arrivals,
        shared_prefix: args.shared_prefix,
        id_limit,
        params: params.clone(),
        seed: args.seed,
    };
    Ok(workload.sequences())
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| Error::config(format!("cannot open the trace {}: {error}", path.display())))
}
