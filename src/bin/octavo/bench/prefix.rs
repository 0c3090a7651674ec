//! `octavo bench prefix`: the time to the first token of a prompt, and of another one that begins alike.

use super::device::refuse_trace;
use super::drive::{Drive, prompt, spread};
use super::report::{Table, number};
use crate::Outcome;
use crate::options::EngineArgs;
use crate::output;
use crate::progress::LoadBars;
use octavo::base::BLOCK_TOKENS;
use octavo::config::EngineConfig;
use octavo::engine::{EngineSettings, locate_model};
use octavo::error::{Error, Result};
use octavo::model::files::ModelFiles;
use octavo::runner::ModelRunner;
use octavo::runner::wgpu::WgpuRunner;
use octavo::sched::SchedulerConfig;
use serde_json::json;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    /// Tokens at the beginning that prompts share; whole blocks of 16
    #[arg(long, value_name = "N", default_value_t = 512)]
    shared: usize,
    /// Tokens after them that they do not share; each number is measured
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 8, 32])]
    own: Vec<usize>,
    /// Measurements, each with another beginning; medians are reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeats: usize,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    refuse_trace(&args.engine)?;
    let shared = args.shared;
    if shared == 0 || !shared.is_multiple_of(BLOCK_TOKENS) || args.own.contains(&0) || args.own.is_empty() {
        return Err(Error::config(format!(
            "--shared is {shared}, but must be a multiple of {BLOCK_TOKENS} above 0, and every --own at least 1"
        )));
    }
    let files = ModelFiles::open(&locate_model(&args.engine.model)?)?;
    let config = EngineConfig::new(args.engine.options_of_runner()?, &files.spec)?;
    let mut bars = LoadBars::new();
    let mut runner = WgpuRunner::load(&files, &config, &mut |progress| bars.show(progress))?;
    drop(bars);
    let capacity = runner.capacity();
    let usual = EngineSettings::new(&config, capacity, Vec::new())?.scheduler;
    let mut drive = Drive::new(&mut runner, SchedulerConfig { prefix_cache: true, ..usual })?;
    let mut number_of_prompt = 0;
    // Milliseconds to the first token of a prompt that begins with `beginning`.
    let mut first = |drive: &mut Drive<'_>, beginning: &[u32], own: usize| -> Result<f64> {
        number_of_prompt += 1;
        let tail = prompt(1000 + number_of_prompt, own, capacity.vocab_size);
        drive.add([beginning, &tail].concat(), 1)?;
        Ok(drive.run(1)?.first.as_secs_f64() * 1e3)
    };
    // What runs first is slower: bundles are recorded, the budget is not known.
    first(&mut drive, &[], 32)?;
    let (mut cold, mut warm) = (vec![Vec::new(); args.own.len()], vec![Vec::new(); args.own.len()]);
    for repeat in 0..args.repeats.max(1) {
        for (index, &own) in args.own.iter().enumerate() {
            let beginning = prompt(repeat * args.own.len() + index, shared, capacity.vocab_size);
            cold[index].push(first(&mut drive, &beginning, own)?);
            // Another one warms the bundles of its size.
            first(&mut drive, &beginning, own)?;
            warm[index].push(first(&mut drive, &beginning, own)?);
        }
    }
    let adapter = runner.info().adapter;
    let mut table = Table::new(&["own tokens", "cold ms", "warm ms", "cold / warm"]);
    let mut lines = Vec::new();
    for (index, own) in args.own.iter().enumerate() {
        let [(cold, ..), (warm, ..)] = [&cold[index], &warm[index]].map(|times| spread(times.iter().copied()));
        table.row(vec![own.to_string(), number(cold), number(warm), format!("{:.1}", cold / warm)]);
        lines.push(json!({"own_tokens": own, "cold_ms": cold, "warm_ms": warm, "ratio": cold / warm}));
    }
    let _reader = match args.json {
        true => output::write_json(&json!({
            "bench": "prefix", "adapter": adapter, "shared_tokens": shared, "repeats": args.repeats, "ttft": lines,
        }))?,
        false => output::write(&format!(
            "time to the first token of prompts with {shared} tokens in common, medians of {}, on {adapter}\n{table}",
            args.repeats.max(1)
        ))?,
    };
    Ok(Outcome::Success)
}
