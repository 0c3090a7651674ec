//! `octavo bench encode`: what a dispatch and a decode step cost the host, on the adapter and on wgpu's backend that does
//! nothing, which leaves wgpu's own share and ours.

use super::drive::{Drive, prompt, spread};
use super::loaded::{self, ModelArgs};
use super::report::{Table, number};
use crate::Outcome;
use crate::output;
use octavo::error::{Error, Result};
use octavo::gpu::Gpu;
use octavo::runner::ModelRunner;
use octavo::runner::wgpu::{WgpuRunner, Workload};
use octavo::sched::SchedulerConfig;
use serde::Serialize;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Sequences at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    sequences: usize,
    /// Measurements; the shortest of encoding, the median of steps
    #[arg(long, value_name = "N", default_value_t = 50)]
    repeats: usize,
    /// Only the backend that does nothing
    #[arg(long)]
    noop: bool,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

/// On one backend.
#[derive(Serialize)]
struct Line {
    device: String,
    dispatches: usize,
    /// Shortest, of encoding the step alone.
    encode_micros_per_step: f64,
    encode_micros_per_dispatch: f64,
    /// Of scheduling, submitting, polling and taking results, with so many steps in a submission; absent where the device
    /// would be measured.
    host_micros_per_step: Vec<(u16, f64)>,
}

const STEPS: [u16; 2] = [1, 4];
/// Steps of a run of the whole path.
const RUN_TOKENS: u32 = 65;

pub fn run(args: &Args) -> Result<Outcome> {
    if args.sequences == 0 || args.sequences > loaded::SEQUENCES {
        return Err(Error::config(format!(
            "--sequences is {}, but must be between 1 and {}",
            args.sequences,
            loaded::SEQUENCES
        )));
    }
    let files = args.model.open()?;
    let gpu = args.model.gpu()?;
    let noop = Gpu::noop(gpu.profile.clone());
    let mut lines = Vec::new();
    if !args.noop {
        let mut runner = loaded::load(gpu, &files, &args.model, 256, 64)?;
        let name = runner.info().adapter;
        lines.push(encode(&mut runner, name, args)?);
    }
    let mut runner = loaded::load(noop, &files, &args.model, 256, 64)?;
    let mut line = encode(&mut runner, "nothing (noop)".into(), args)?;
    for steps in STEPS {
        let runs = (0..args.repeats.clamp(1, 20)).map(|_| whole_path(&mut runner, args.sequences, steps));
        let (median, ..) = spread(runs.collect::<Result<Vec<_>>>()?);
        line.host_micros_per_step.push((steps, median));
    }
    lines.push(line);
    let _reader = match args.json {
        true => output::write_json(&serde_json::json!({
            "bench": "encode", "model": files.source_name, "sequences": args.sequences, "backends": lines,
        }))?,
        false => {
            let mut table = Table::new(&["backend", "dispatches", "us to encode a step", "us a dispatch"]);
            for line in &lines {
                table.row(vec![
                    line.device.clone(),
                    line.dispatches.to_string(),
                    number(line.encode_micros_per_step),
                    format!("{:.3}", line.encode_micros_per_dispatch),
                ]);
            }
            let mut text = format!("{}, steps of {} sequences\n{table}", files.source_name, args.sequences);
            for (steps, micros) in lines.iter().flat_map(|line| &line.host_micros_per_step) {
                text.push_str(&format!(
                    "  whole path without a driver, {steps} steps a submission: {} us a step\n",
                    number(*micros)
                ));
            }
            output::write(&text)?
        }
    };
    Ok(Outcome::Success)
}

fn encode(runner: &mut WgpuRunner, device: String, args: &Args) -> Result<Line> {
    let workload = Workload::Decode { rows: args.sequences, context: 64 };
    let (time, dispatches) = runner.encode_time(workload, args.repeats)?;
    let micros = time.as_secs_f64() * 1e6;
    Ok(Line {
        device,
        dispatches,
        encode_micros_per_step: micros,
        encode_micros_per_dispatch: micros / dispatches.max(1) as f64,
        host_micros_per_step: Vec::new(),
    })
}

/// Microseconds of a decode step, scheduler and all.
fn whole_path(runner: &mut WgpuRunner, sequences: usize, steps: u16) -> Result<f64> {
    let capacity = runner.capacity();
    let config = SchedulerConfig { prefix_cache: false, max_steps: steps, ..SchedulerConfig::for_capacity(&capacity) };
    let mut drive = Drive::new(runner, config)?;
    for index in 0..sequences {
        drive.add(prompt(index, 16, capacity.vocab_size), RUN_TOKENS)?;
    }
    let run = drive.run(sequences)?;
    Ok(run.later.as_secs_f64() * 1e6 * sequences as f64 / run.later_tokens.max(1) as f64)
}
