//! `octavo bench decode`, `batch` and `prefill`: how fast a model runs here, once warm. Times are reported, never judged.

use super::device::refuse_trace;
use super::drive::{Drive, Measured, prompt, spread};
use super::report::{Table, number, percent};
use crate::Outcome;
use crate::options::EngineArgs;
use crate::output;
use crate::progress::LoadBars;
use clap::Args;
use octavo::config::EngineConfig;
use octavo::engine::locate_model;
use octavo::error::{Error, Result};
use octavo::model::files::ModelFiles;
use octavo::runner::ModelRunner;
use octavo::runner::wgpu::{Method, RunnerCounters, StepProfile, WgpuRunner, Workload};
use octavo::sched::SchedulerConfig;
use serde::Serialize;

#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    engine: EngineArgs,
    /// Tokens to generate for each sequence; a prompt's bench generates one
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: u32,
    /// Length of each prompt
    #[arg(long, value_name = "N", default_value_t = 128)]
    prompt_tokens: usize,
    /// Sequences at once [default: 1, or 8 in `batch`]
    #[arg(long, value_name = "N")]
    sequences: Option<usize>,
    /// Measurements; the median is reported
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeats: usize,
    /// Also show each kernel's share of a step
    #[arg(long)]
    profile: bool,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Prefill,
    Decode,
    Batch,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prompt",
            Self::Decode | Self::Batch => "decode",
        }
    }
}

/// The findings. Counts and times of submissions are means over all repeats.
#[derive(Serialize)]
struct Findings {
    bench: Phase,
    adapter: String,
    driver: String,
    sequences: usize,
    prompt_tokens: usize,
    tokens: u32,
    repeats: usize,
    /// The median.
    tokens_per_second: f64,
    slowest_tokens_per_second: f64,
    fastest_tokens_per_second: f64,
    /// Of a decode step for one sequence.
    dispatches_per_step: u32,
    /// Of one repeat, prompts and all.
    dispatches: u64,
    submits: u64,
    encode_ms: f64,
    /// Time that submissions had the device.
    device_ms: f64,
    encode_micros_per_submit: f64,
    encode_micros_per_dispatch: f64,
    /// Weights that one decode step reads.
    bytes_per_step: u64,
    weight_bytes: u64,
    /// Buffers and bind groups made while measuring; 0 once warm.
    device_objects_created: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Profile>,
}

#[derive(Serialize)]
struct Profile {
    /// Of the step that ran: no more than fit into one.
    rows: usize,
    /// Tokens before those that are decoded; none where they are a prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<usize>,
    step_ms: f64,
    /// `timestamps` or `left out`.
    method: &'static str,
    kernels: Vec<Share>,
    unexplained_ms: f64,
}

#[derive(Serialize)]
struct Share {
    kernel: &'static str,
    dispatches: usize,
    ms: f64,
    share: f64,
}

pub fn run(args: &BenchArgs, phase: Phase) -> Result<Outcome> {
    refuse_trace(&args.engine)?;
    let sequences = args.sequences.unwrap_or(if phase == Phase::Batch { 8 } else { 1 });
    if sequences == 0 || args.prompt_tokens == 0 || args.tokens < 2 {
        return Err(Error::config(format!(
            "--sequences is {sequences}, --prompt-tokens {} and --tokens {}, but they must be at least 1, 1 and 2",
            args.prompt_tokens, args.tokens
        )));
    }
    let files = ModelFiles::open(&locate_model(&args.engine.model)?)?;
    let config = EngineConfig::new(args.engine.options_of_runner()?, &files.spec)?;
    let mut bars = LoadBars::new();
    let mut runner = WgpuRunner::load(&files, &config, &mut |progress| bars.show(progress))?;
    drop(bars);
    let tokens = if phase == Phase::Prefill { 1 } else { args.tokens };
    measure(&mut runner, &config, args, sequences, tokens.min(8))?;
    let before = runner.counters();
    let repeats = args.repeats.max(1);
    let runs = (0..repeats).map(|_| measure(&mut runner, &config, args, sequences, tokens));
    let runs = runs.collect::<Result<Vec<_>>>()?;
    let after = runner.counters();
    let rates = runs.iter().map(|run| match phase {
        Phase::Prefill => (args.prompt_tokens * sequences) as f64 / run.first.as_secs_f64(),
        Phase::Decode | Phase::Batch => run.later_tokens as f64 / run.later.as_secs_f64(),
    });
    let mut findings = findings(&runner, [&before, &after], spread(rates), repeats);
    (findings.bench, findings.sequences, findings.prompt_tokens) = (phase, sequences, args.prompt_tokens);
    findings.tokens = tokens;
    if args.profile {
        let workload = match phase {
            Phase::Prefill => Workload::Prompt { tokens: args.prompt_tokens },
            _ => Workload::Decode { rows: sequences, context: args.prompt_tokens },
        };
        findings.profile = Some(profile_of(&runner.profile(workload, repeats.max(5))?));
    }
    let _reader = match args.json {
        true => output::write_json(&findings)?,
        false => output::write(&report(&findings))?,
    };
    Ok(Outcome::Success)
}

fn measure(
    runner: &mut WgpuRunner,
    config: &EngineConfig,
    args: &BenchArgs,
    sequences: usize,
    tokens: u32,
) -> Result<Measured> {
    let capacity = runner.capacity();
    let scheduling = SchedulerConfig {
        long_prefill_token_threshold: config.long_prefill_token_threshold,
        prefix_cache: false,
        max_steps: config.steps_per_submit,
        max_in_flight: config.max_in_flight,
        ..SchedulerConfig::for_capacity(&capacity)
    };
    let mut drive = Drive::new(runner, scheduling)?;
    for index in 0..sequences {
        drive.add(prompt(index, args.prompt_tokens, capacity.vocab_size), tokens)?;
    }
    drive.run(sequences)
}

fn findings(
    runner: &WgpuRunner,
    [before, after]: [&RunnerCounters; 2],
    (median, slowest, fastest): (f64, f64, f64),
    repeats: usize,
) -> Findings {
    let info = runner.info();
    let all = |count: fn(&RunnerCounters) -> u64| count(after) - count(before);
    let (submits, dispatches) = (all(|c| c.submitted.submissions), all(|c| c.submitted.dispatches));
    let encode_micros = all(|c| c.submitted.encode_nanos) as f64 / 1e3;
    let runs = repeats as f64;
    Findings {
        bench: Phase::Decode,
        adapter: info.adapter,
        driver: info.driver,
        sequences: 0,
        prompt_tokens: 0,
        tokens: 0,
        repeats,
        tokens_per_second: median,
        slowest_tokens_per_second: slowest,
        fastest_tokens_per_second: fastest,
        dispatches_per_step: info.dispatches_per_step,
        dispatches: dispatches / repeats as u64,
        submits: submits / repeats as u64,
        encode_ms: encode_micros / 1e3 / runs,
        device_ms: all(|c| c.device_micros) as f64 / 1e3 / runs,
        encode_micros_per_submit: encode_micros / submits.max(1) as f64,
        encode_micros_per_dispatch: encode_micros / dispatches.max(1) as f64,
        bytes_per_step: after.weight_bytes_per_step,
        weight_bytes: info.weight_bytes,
        device_objects_created: all(|c| c.buffers) + all(|c| c.bind_groups),
        profile: None,
    }
}

fn profile_of(profile: &StepProfile) -> Profile {
    let whole = profile.whole.as_secs_f64();
    let share = |kernel: &octavo::runner::wgpu::KernelCost| Share {
        kernel: kernel.label,
        dispatches: kernel.dispatches,
        ms: kernel.time.as_secs_f64() * 1e3,
        share: kernel.time.as_secs_f64() / whole,
    };
    let (rows, context) = match profile.workload {
        Workload::Decode { rows, context } => (rows, Some(context)),
        Workload::Prompt { tokens } => (tokens, None),
    };
    Profile {
        rows,
        context,
        step_ms: whole * 1e3,
        method: match profile.method {
            Method::Timestamps => "timestamps",
            Method::LeftOut => "left out",
        },
        kernels: profile.kernels.iter().map(share).collect(),
        unexplained_ms: profile.unexplained_seconds() * 1e3,
    }
}

fn report(findings: &Findings) -> String {
    let Findings { adapter, sequences, prompt_tokens, repeats, submits, dispatches, .. } = findings;
    let mut text = format!(
        "{} {:.1} tok/s (median of {repeats}, {:.1} to {:.1}; {sequences} sequences, prompts of {prompt_tokens}) on {adapter}\n\
         {dispatches} dispatches in {submits} submits, {:.0} ms on the device; encoding {:.0} us a submit, {:.2} us a dispatch\n\
         a decode step: {} dispatches, {:.1} MB of weights\n",
        findings.bench.name(),
        findings.tokens_per_second,
        findings.slowest_tokens_per_second,
        findings.fastest_tokens_per_second,
        findings.device_ms,
        findings.encode_micros_per_submit,
        findings.encode_micros_per_dispatch,
        findings.dispatches_per_step,
        findings.bytes_per_step as f64 / 1e6
    );
    if let Some(profile) = &findings.profile {
        let mut table = Table::new(&["kernel", "n", "ms", "share"]);
        for Share { kernel, dispatches, ms, share } in &profile.kernels {
            table.row(vec![(*kernel).into(), dispatches.to_string(), number(*ms), percent(*share)]);
        }
        let unexplained = profile.unexplained_ms;
        table.row(vec!["unexplained".into(), "".into(), number(unexplained), percent(unexplained / profile.step_ms)]);
        let how = match profile.method {
            "timestamps" => "timestamps around each dispatch",
            _ => "what it saves to leave a kernel out",
        };
        let what = match profile.context {
            Some(context) => format!("{} rows after {context} tokens", profile.rows),
            None => format!("{} rows of a prompt", profile.rows),
        };
        text.push_str(&format!("\none step of {what}: {:.2} ms; by {how}\n{table}", profile.step_ms));
    }
    text
}
