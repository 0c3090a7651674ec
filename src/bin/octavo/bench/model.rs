//! `octavo bench decode` and `prefill`: how fast a model runs here, once warm. Times are reported, never judged.

use super::device::refuse_trace;
use crate::Outcome;
use crate::options::EngineArgs;
use crate::output;
use crate::progress::LoadBars;
use clap::Args;
use octavo::base::{RequestId, TokenId};
use octavo::config::EngineConfig;
use octavo::engine::locate_model;
use octavo::error::{Error, ErrorKind, Result};
use octavo::model::files::ModelFiles;
use octavo::runner::wgpu::WgpuRunner;
use octavo::runner::{ModelRunner, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::StepPlan;
use octavo::sched::{NewSequence, Scheduler, SchedulerConfig};
use serde_json::json;
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    engine: EngineArgs,
    /// Tokens to generate for each sequence
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: u32,
    /// Length of each prompt
    #[arg(long, value_name = "N", default_value_t = 128)]
    prompt_tokens: usize,
    /// Sequences at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    sequences: usize,
    /// Measurements; the median is reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeats: usize,
    /// Also show each kernel's share, by leaving kernels out one at a time
    #[arg(long)]
    profile: bool,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Prefill,
    Decode,
}

pub fn run(args: &BenchArgs, phase: Phase) -> Result<Outcome> {
    refuse_trace(&args.engine)?;
    let prefill = phase == Phase::Prefill;
    let files = ModelFiles::open(&locate_model(&args.engine.model)?)?;
    let config = EngineConfig::new(args.engine.options()?, &files.spec)?;
    let mut bars = LoadBars::new();
    let mut runner = WgpuRunner::load(&files, &config, &mut |progress| bars.show(progress))?;
    let info = runner.info();
    let tokens = if prefill { 1 } else { args.tokens };
    measure(&mut runner, &config, args, tokens.min(8))?;
    let before = runner.counters();
    let mut runs = Vec::with_capacity(args.repeats);
    for _ in 0..args.repeats.max(1) {
        runs.push(measure(&mut runner, &config, args, tokens)?);
    }
    let after = runner.counters();
    let rate = |run: &Measured| match prefill {
        true => (args.prompt_tokens * args.sequences) as f64 / run.first.as_secs_f64(),
        false => run.decoded as f64 / run.decode.as_secs_f64(),
    };
    let mut rates: Vec<f64> = runs.iter().map(rate).collect();
    rates.sort_by(f64::total_cmp);
    let median = rates[rates.len() / 2];
    let submissions = (after.submissions - before.submissions) / runs.len() as u64;
    let encode = (after.encode_micros - before.encode_micros) as f64 / (after.submissions - before.submissions) as f64;
    let grown = after.buffers + after.bind_groups - before.buffers - before.bind_groups;
    // Whoever reads may have left; the profile below still goes to stderr.
    let _reader = if args.json {
        output::write_json(&json!({
            "bench": if prefill { "prefill" } else { "decode" },
            "adapter": info.adapter,
            "driver": info.driver,
            "sequences": args.sequences,
            "prompt_tokens": args.prompt_tokens,
            "tokens": tokens,
            "tokens_per_second": median,
            "all_tokens_per_second": rates,
            "dispatches_per_step": info.dispatches_per_step,
            "submissions": submissions,
            "encode_micros_per_submission": encode,
            "weight_bytes_per_step": after.weight_bytes_per_step,
            "weight_bytes": info.weight_bytes,
            "device_objects_created": grown,
        }))?
    } else {
        let what = if prefill { "prompt" } else { "decode" };
        output::write(&format!(
            "{what} {median:.1} tok/s ({} sequences, median of {}) on {}; {} dispatches a decode step, {encode:.0} us to \
             encode a submission, {:.1} MB of weights read a step\n",
            args.sequences,
            runs.len(),
            info.adapter,
            info.dispatches_per_step,
            after.weight_bytes_per_step as f64 / 1e6
        ))?
    };
    if args.profile {
        let rows = if prefill { args.prompt_tokens } else { args.sequences };
        let (whole, costs) = runner.profile(rows, prefill, args.repeats.max(5))?;
        eprintln!("one step of {rows} rows: {:.2} ms; without each kernel it would save", whole.as_secs_f64() * 1e3);
        for cost in costs {
            eprintln!(
                "  {:<14} {:>4} dispatches {:>8.2} ms {:>5.1} %",
                cost.label,
                cost.dispatches,
                cost.saved.as_secs_f64() * 1e3,
                100.0 * cost.saved.as_secs_f64() / whole.as_secs_f64()
            );
        }
    }
    Ok(Outcome::Success)
}

/// One run.
struct Measured {
    /// From the first submission until every sequence has its first token.
    first: Duration,
    /// From then to the end.
    decode: Duration,
    /// Tokens of that time.
    decoded: usize,
}

fn measure(runner: &mut WgpuRunner, config: &EngineConfig, args: &BenchArgs, tokens: u32) -> Result<Measured> {
    let capacity = runner.capacity();
    let scheduling = SchedulerConfig {
        long_prefill_token_threshold: config.long_prefill_token_threshold,
        prefix_cache: false,
        max_steps: config.steps_per_submit,
        max_in_flight: config.max_in_flight,
        ..SchedulerConfig::for_capacity(&capacity)
    };
    let mut scheduler = Scheduler::new(scheduling, capacity)?;
    for index in 0..args.sequences {
        // Prompts that differ from the first token on, of ids that every vocabulary has.
        let spread = capacity.vocab_size.min(20_000);
        let prompt = (0..args.prompt_tokens).map(|i| ((i * 7919 + index * 104_729 + 17) as TokenId) % spread).collect();
        let sampling = SamplingRow::new(&SamplingParams::default(), 0, &[]);
        scheduler.add(NewSequence::new(RequestId(index as u64), prompt, tokens, sampling), &mut Vec::new())?;
    }
    let (mut plan, mut result, mut events) = (StepPlan::default(), StepResult::default(), Vec::new());
    let start = Instant::now();
    let (mut first, mut seen, mut early) = (None, 0, 0);
    let failed = |error: octavo::runner::RunError| Error::new(ErrorKind::DeviceLost, error);
    while scheduler.has_work() {
        while scheduler.schedule(&mut plan, &mut events) {
            runner.submit(&plan).map_err(failed)?;
        }
        if runner.poll(Wait::AtMost(Duration::from_secs(600)), &mut result).map_err(failed)? {
            scheduler.commit(&result, &mut events);
            seen += result.tokens.len();
            // Sequences start together, so as many tokens as sequences mean that each has its first, or nearly so.
            if first.is_none() && seen >= args.sequences {
                first = Some(start.elapsed());
                early = seen;
            }
        }
        events.clear();
    }
    let first = first.unwrap_or_default();
    Ok(Measured { first, decode: start.elapsed().saturating_sub(first), decoded: seen - early })
}
