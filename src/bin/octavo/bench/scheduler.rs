//! `octavo bench scheduler`: what planning a step and taking its result cost, without any device behind it, for long
//! queues, large pools and large batches. Neither should matter but the last.

use super::report::{Table, number, save_json};
use crate::Outcome;
use crate::output;
use octavo::base::{BLOCK_TOKENS, RequestId, TokenId};
use octavo::error::Result;
use octavo::runner::{Capacity, ModelRunner, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::StepPlan;
use octavo::sched::{NewSequence, Scheduler, SchedulerConfig};
use octavo::sim::{EchoRunner, Spread, run_error};
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  octavo bench scheduler                  a table; takes some seconds
  octavo bench scheduler --fast           fewer steps and no sizes above 10^4
  octavo bench scheduler --out bench      also bench/scheduler.json and bench/scheduler.svg

One size at a time departs from 256 running, 1,000 waiting, 100,000 blocks. Every running sequence decodes one token a
step; their blocks fill up and are named for the prefix cache as in service.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Steps measured for each size
    #[arg(long, value_name = "N", default_value_t = 2000)]
    steps: usize,
    /// Fewer steps and sizes
    #[arg(long)]
    fast: bool,
    /// Folder for scheduler.json and scheduler.svg
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
struct Size {
    waiting: usize,
    blocks: usize,
    running: usize,
}

const USUAL: Size = Size { waiting: 1000, blocks: 100_000, running: 256 };

/// Times in microseconds.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Point {
    #[serde(flatten)]
    size: Size,
    schedule_micros: Spread,
    commit_micros: Spread,
}

impl Point {
    fn step_micros(&self) -> f64 {
        self.schedule_micros.p50 + self.commit_micros.p50
    }
}

pub fn run(args: &Args) -> Result<Outcome> {
    let steps = if args.fast { args.steps.min(300) } else { args.steps }.max(1);
    let small = |size: usize| !args.fast || size <= 10_000;
    let queue = [100, 1000, 10_000, 100_000].into_iter().filter(|size| small(*size));
    let pools = [8192, 100_000, 1_000_000].into_iter().filter(|size| small(*size));
    let curves: [(&str, Vec<Size>); 3] = [
        ("waiting", queue.map(|waiting| Size { waiting, ..USUAL }).collect()),
        ("blocks", pools.map(|blocks| Size { blocks, ..USUAL }).collect()),
        ("running", [16, 64, 256].map(|running| Size { running, ..USUAL }).to_vec()),
    ];
    let mut table =
        Table::new(&["waiting", "blocks", "running", "schedule p50", "p99", "commit p50", "p99", "step p50, us"]);
    let mut results = Vec::new();
    for (name, sizes) in curves {
        let mut points = Vec::new();
        for size in sizes {
            let point = measure(size, steps)?;
            let (schedule, commit) = (point.schedule_micros, point.commit_micros);
            let sizes = [size.waiting, size.blocks, size.running].map(|count| count.to_string());
            let times = [schedule.p50, schedule.p99, commit.p50, commit.p99, point.step_micros()].map(number);
            table.row(sizes.into_iter().chain(times).collect());
            points.push(point);
        }
        results.push((name, points));
    }
    let value = json!({
        "bench": "scheduler",
        "steps": steps,
        "curves": results.iter().map(|(name, points)| json!({"varied": name, "points": points})).collect::<Vec<_>>(),
    });
    if let Some(folder) = &args.out {
        save_json(&folder.join("scheduler.json"), &value)?;
        #[cfg(feature = "plot")]
        picture(&results).save(&folder.join("scheduler.svg"))?;
    }
    let _reader = match args.json {
        true => output::write_json(&value)?,
        false => output::write(&table.to_string())?,
    };
    Ok(Outcome::Success)
}

/// Prompt tokens of each sequence.
const PROMPT: usize = 32;

fn measure(size: Size, steps: usize) -> Result<Point> {
    // Long enough that nobody ends while the clock runs, short enough that the smallest pool holds all.
    let most = (size.blocks / size.running * BLOCK_TOKENS).saturating_sub(PROMPT + 1);
    let output = (steps + size.running + 200).min(most);
    let steps = steps.min(output.saturating_sub(size.running + 100)).max(1);
    let capacity = Capacity {
        block_count: size.blocks as u32,
        slot_count: size.running as u32,
        max_batched_tokens: 4096,
        max_model_len: (PROMPT + output) as u32,
        max_steps: 1,
        vocab_size: 32_000,
        host_blocks: 0,
        window: None,
        logprob_entries: 1 << 16,
    };
    let mut runner = EchoRunner::new(capacity);
    let mut scheduler = Scheduler::new(SchedulerConfig::for_capacity(&capacity), capacity)?;
    let (mut plan, mut result, mut events) = (StepPlan::default(), StepResult::default(), Vec::new());
    let row = SamplingRow::new(&SamplingParams::default(), 0, &[]);
    for index in 0..size.running + size.waiting {
        let prompt = (0..PROMPT).map(|at| ((index * 7919 + at * 104_729) % 32_000) as TokenId).collect();
        scheduler.add(NewSequence::new(RequestId(index as u64), prompt, output as u32, row), &mut events)?;
        events.clear();
    }
    let (mut schedule, mut commit) = (Vec::with_capacity(steps), Vec::with_capacity(steps));
    // All running ones must have their prompts behind them: 128 fit into a step.
    let warm_up = size.running.div_ceil(4096 / PROMPT) + 64;
    for step in 0..warm_up + steps {
        let start = Instant::now();
        let planned = scheduler.schedule(&mut plan, &mut events);
        let scheduled = start.elapsed();
        if planned {
            runner.submit(&plan).map_err(run_error)?;
        }
        runner.poll(Wait::No, &mut result).map_err(run_error)?;
        let start = Instant::now();
        scheduler.commit(&result, &mut events);
        let committed = start.elapsed();
        events.clear();
        if step >= warm_up {
            schedule.push(scheduled.as_secs_f64() * 1e6);
            commit.push(committed.as_secs_f64() * 1e6);
        }
    }
    Ok(Point { size, schedule_micros: Spread::of(schedule), commit_micros: Spread::of(commit) })
}

/// One panel for each size that was varied.
#[cfg(feature = "plot")]
fn picture(results: &[(&str, Vec<Point>)]) -> octavo::plot::Figure {
    use octavo::plot::axis::Scale;
    use octavo::plot::{Chart, Figure, Line, Series};
    let panel = |(name, points): &(&str, Vec<Point>)| {
        let x = |point: &Point| match *name {
            "waiting" => point.size.waiting as f64,
            "blocks" => point.size.blocks as f64,
            _ => point.size.running as f64,
        };
        let line = |title: &str, y: &dyn Fn(&Point) -> f64| {
            Line::new(title, points.iter().map(|point| (x(point), y(point))).collect())
        };
        let (title, label) = match *name {
            "waiting" => ("Longer queue", "requests waiting"),
            "blocks" => ("Larger pool", "KV blocks"),
            _ => ("Larger batch", "sequences running"),
        };
        let lines = vec![
            line("schedule(), median", &|point| point.schedule_micros.p50),
            line("commit(), median", &|point| point.commit_micros.p50),
        ];
        Chart {
            x_label: label.into(),
            y_label: "microseconds a step".into(),
            x_scale: Scale::Log,
            ..Chart::new(title, Series::Lines(lines))
        }
    };
    Figure {
        title: "What the scheduler costs in each step".into(),
        columns: 3,
        panels: results.iter().map(panel).collect(),
    }
}
