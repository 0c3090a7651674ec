//! `octavo bench kernels`: every kernel of a step at a model's real shapes, by itself, against what the device can do at best.

use super::loaded::{self, ModelArgs};
use super::report::{Table, number};
use crate::Outcome;
use crate::output;
use octavo::error::{Error, Result};
use octavo::gpu::Variant;
use octavo::kernels::choice::product_candidates;
use octavo::kernels::peak::{self, Peak};
use octavo::runner::wgpu::{KernelTime, Workload};
use serde::Serialize;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  octavo bench kernels                          the shapes of SmolLM2-135M in Q4_1, at 1, 8 and 128 rows
  octavo bench kernels --format q8_0 --rows 1   another format, only decoding of one sequence
  octavo bench kernels --variants --rows 1      products in every shape that they may have here
  octavo bench kernels --model M --json > a     a real model, for comparing with another day's

Each line is all dispatches of a kernel in one step, one after another on the data of their layers: so many rows of one
prompt from 17 on, else decoding sequences with --context tokens before them. GB/s are weights, or keys and values, each
counted once; peak is the share of the device's multiply-adds (or of its reading, if that is more), which are measured first.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Rows of a step; up to 16 decode, more are a prompt (as much of it as the model's context holds)
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 8, 128])]
    rows: Vec<usize>,
    /// Tokens before those that are decoded
    #[arg(long, value_name = "N", default_value_t = 128)]
    context: usize,
    /// Measurements; the median is shown
    #[arg(long, value_name = "N", default_value_t = 7)]
    repeats: usize,
    /// Also products in the other shapes that this adapter allows, which give the same bits
    #[arg(long)]
    variants: bool,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Findings<'a> {
    bench: &'static str,
    adapter: &'a str,
    model: &'a str,
    peak: Peak,
    kernels: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    rows: usize,
    /// Tokens before those that are decoded; none where they are a prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<usize>,
    kernel: &'static str,
    variant: String,
    #[serde(skip)]
    brief: String,
    grid: [u32; 3],
    dispatches: usize,
    /// Of all dispatches together.
    median_ms: f64,
    fastest_ms: f64,
    slowest_ms: f64,
    micros_per_dispatch: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    gflops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gbytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    share_of_peak: Option<f64>,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let most = args.rows.iter().copied().max().unwrap_or(0);
    if args.rows.contains(&0) || most == 0 {
        return Err(Error::config("--rows must name numbers of rows, each at least 1"));
    }
    let files = args.model.open()?;
    let gpu = args.model.gpu()?;
    let peak = peak::measure(&gpu)?;
    let mut runner = loaded::load(gpu, &files, &args.model, most.max(args.context) + loaded::ROOM, most)?;
    let mut shapes = product_candidates(&runner.gpu().profile);
    shapes.truncate(if args.variants { usize::MAX } else { 1 });
    let mut kernels = Vec::new();
    for &rows in &args.rows {
        let workload = match rows <= loaded::SEQUENCES {
            true => Workload::Decode { rows, context: args.context },
            false => Workload::Prompt { tokens: rows },
        };
        // A line says what ran, which is less than was asked where the model's context is short.
        let workload = runner.fit(workload);
        let (rows, context) = match workload {
            Workload::Decode { rows, context } => (rows, Some(context)),
            Workload::Prompt { tokens } => (tokens, None),
        };
        for (index, &shape) in shapes.iter().enumerate() {
            runner.force_shape(shape);
            let times = runner.kernel_times(workload, args.repeats)?.into_iter();
            let shaped = times.filter(|kernel| index == 0 || kernel.variant.kernel.starts_with("matmul"));
            kernels.extend(shaped.map(|kernel| line((rows, context), kernel, &peak)));
        }
    }
    let adapter = runner.info().adapter;
    let findings = Findings { bench: "kernels", adapter: &adapter, model: &files.source_name, peak, kernels };
    let _reader = match args.json {
        true => output::write_json(&findings)?,
        false => output::write(&report(&findings))?,
    };
    Ok(Outcome::Success)
}

fn line((rows, context): (usize, Option<usize>), kernel: KernelTime, peak: &Peak) -> Line {
    let KernelTime { label, variant, grid, dispatches, times, work } = kernel;
    let milliseconds = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
    let median = milliseconds(times.get(times.len() / 2));
    let rate = |amount: u64| amount as f64 / (median.max(1e-6) * 1e6);
    let (gflops, gbytes) = (work.map(|work| rate(work.flops)), work.map(|work| rate(work.bytes)));
    let share = |gflops: f64, gbytes: f64| (gflops / peak.gflops).max(gbytes / peak.read_gbytes);
    Line {
        rows,
        context,
        kernel: label,
        brief: brief(&variant),
        variant: variant.to_string(),
        grid,
        dispatches,
        median_ms: median,
        fastest_ms: milliseconds(times.first()),
        slowest_ms: milliseconds(times.last()),
        micros_per_dispatch: median * 1e3 / dispatches as f64,
        gflops,
        gbytes,
        share_of_peak: gflops.zip(gbytes).map(|(gflops, gbytes)| share(gflops, gbytes)),
    }
}

/// A variant without its constants, of which some kernels have a dozen, save those that a choice decides.
fn brief(variant: &Variant) -> String {
    const CHOSEN: [&str; 2] = ["TILE", "SEGMENT_LANES"];
    let consts = variant.consts.iter().filter(|(name, _)| CHOSEN.contains(name)).copied().collect();
    Variant { consts, ..variant.clone() }.to_string()
}

fn report(findings: &Findings<'_>) -> String {
    let Findings { adapter, model, peak, kernels, .. } = findings;
    let mut text = format!(
        "{model} on {adapter}\nat best: {} GFLOP/s of f32 multiply-adds, {} Gop/s of byte dot products, {} GB/s read\n",
        number(peak.gflops),
        number(peak.byte_gops),
        number(peak.read_gbytes)
    );
    for lines in kernels.chunk_by(|one, next| (one.rows, one.context) == (next.rows, next.context)) {
        text.push_str(&section(lines));
    }
    text
}

/// The kernels of one step.
fn section(lines: &[Line]) -> String {
    let mut table =
        Table::new(&["kernel", "n", "us each", "ms all", "spread", "GFLOP/s", "GB/s", "peak", "grid", "variant"]);
    for line in lines {
        let or_dash = |value: Option<f64>, show: fn(f64) -> String| value.map_or_else(|| "-".into(), show);
        table.row(vec![
            line.kernel.into(),
            line.dispatches.to_string(),
            number(line.micros_per_dispatch),
            number(line.median_ms),
            format!("{}..{}", number(line.fastest_ms), number(line.slowest_ms)),
            or_dash(line.gflops, number),
            or_dash(line.gbytes, number),
            or_dash(line.share_of_peak, super::report::percent),
            format!("{:?}", line.grid),
            line.brief.clone(),
        ]);
    }
    let title = match lines.first() {
        Some(Line { rows, context: Some(context), .. }) => format!("{rows} rows after {context} tokens"),
        Some(Line { rows, .. }) => format!("{rows} rows of a prompt"),
        None => String::new(),
    };
    format!("\n{title}\n{table}")
}
