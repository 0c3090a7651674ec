//! `octavo bench start`: from nothing to the first token, by stages. Each run opens the device and the model afresh.

use super::device::refuse_trace;
use super::drive::spread;
use super::report::{Table, number};
use crate::Outcome;
use crate::options::EngineArgs;
use crate::output;
use octavo::config::{LoadProgress, LoadStage};
use octavo::error::{Error, Result};
use octavo::llm::Llm;
use octavo::{Prompt, SamplingParams};
use serde_json::json;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  octavo bench start --model M                                     with the shaders that the driver has kept
  octavo bench start --model M --warm-up load                      with everything prepared before the first request
  MESA_SHADER_CACHE_DISABLE=true octavo bench start --model M --repeats 1
                                                                   as on a new machine, with Mesa's drivers

The first repeat may find colder caches than the others; --repeats 1 shows it alone.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 1)]
    prompt_tokens: usize,
    /// Measurements; the median of each stage is reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeats: usize,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

/// Names of the stages, in order.
const STAGES: [&str; 5] = ["files and device", "weights", "shaders", "tokenizer and engine", "first token"];

pub fn run(args: &Args) -> Result<Outcome> {
    refuse_trace(&args.engine)?;
    if args.prompt_tokens == 0 {
        return Err(Error::config("--prompt-tokens is 0, but a first token needs a prompt of at least 1"));
    }
    let mut runs = Vec::new();
    let mut adapter = String::new();
    for _ in 0..args.repeats.max(1) {
        let (stages, name) = once(args)?;
        adapter = name;
        runs.push(stages);
    }
    let milliseconds = |stage: usize| spread(runs.iter().map(|run| run[stage].as_secs_f64() * 1e3));
    let total = spread(runs.iter().map(|run| run.iter().sum::<Duration>().as_secs_f64() * 1e3));
    let stages = STAGES.iter().enumerate().map(|(index, name)| (*name, milliseconds(index)));
    let lines: Vec<_> = stages.chain([("start to first token", total)]).collect();
    let _reader = if args.json {
        let lines = lines.iter().map(|(name, (median, least, most))| {
            json!({"stage": name, "ms": median, "fastest_ms": least, "slowest_ms": most})
        });
        output::write_json(&json!({
            "bench": "start", "adapter": adapter, "prompt_tokens": args.prompt_tokens, "repeats": runs.len(),
            "stages": lines.collect::<Vec<_>>(),
        }))?
    } else {
        let mut table = Table::new(&["stage", "ms", "spread"]);
        for (name, (median, least, most)) in lines {
            table.row(vec![name.into(), number(median), format!("{}..{}", number(least), number(most))]);
        }
        output::write(&format!("medians of {} on {adapter}\n{table}", runs.len()))?
    };
    Ok(Outcome::Success)
}

fn once(args: &Args) -> Result<([Duration; 5], String)> {
    let start = Instant::now();
    // When each stage of loading was first heard of, and when anything last was.
    let mut heard: Vec<(LoadStage, Instant)> = Vec::new();
    let mut ready = start;
    let llm = Llm::open_with_progress(&args.engine.model, args.engine.options()?, &mut |progress: LoadProgress| {
        ready = Instant::now();
        if heard.last().is_none_or(|(stage, _)| *stage != progress.stage) {
            heard.push((progress.stage, ready));
        }
    })?;
    let opened = Instant::now();
    let prompt = Prompt::Tokens((1..=args.prompt_tokens as u32).map(|id| id % llm.spec().vocab_size as u32).collect());
    llm.generate([prompt], SamplingParams { ignore_eos: true, ..SamplingParams::greedy(1) })?;
    let end = Instant::now();
    let began = |wanted: LoadStage| heard.iter().find(|(stage, _)| *stage == wanted).map_or(opened, |(_, at)| *at);
    let (weights, shaders) = (began(LoadStage::Uploading), began(LoadStage::Compiling));
    let ends = [weights, shaders, ready, opened, end];
    let mut before = start;
    let stages = ends.map(|at| {
        let stage = at.saturating_duration_since(before);
        before = before.max(at);
        stage
    });
    Ok((stages, llm.info().adapter))
}
