//! `octavo bench context`: how the time of a decode step grows with the tokens before it.

use super::drive::spread;
use super::loaded::{self, ModelArgs};
use super::report::{Table, number};
use crate::Outcome;
use crate::output;
use octavo::error::{Error, Result};
use octavo::runner::wgpu::Workload;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  octavo bench context --model M                       128 to 8192 tokens, as far as the model and memory reach
  octavo bench context --model M --out context.svg     and a picture
  octavo bench context --sequences 8 --most 2048       eight sequences of such contexts, with the shapes of SmolLM2
  octavo bench context --kv-dtype q8_0                 with keys and values in eight bits

Lengths double up to --most. Where the model or the memory ends before, the last line is the longest context that still fits, and a
few tokens of room. The keys and values are whatever memory holds; the time does not depend on them.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Sequences at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    sequences: usize,
    /// Longest context, as far as the model and memory reach
    #[arg(long, value_name = "N", default_value_t = 8192)]
    most: usize,
    /// Measurements; the median is shown
    #[arg(long, value_name = "N", default_value_t = 7)]
    repeats: usize,
    /// Picture to write, .svg or .png
    #[cfg(feature = "plot")]
    #[arg(long, value_name = "FILE")]
    out: Option<std::path::PathBuf>,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

const SHORTEST: usize = 128;

pub fn run(args: &Args) -> Result<Outcome> {
    let (most, sequences) = (args.most, args.sequences);
    if most < SHORTEST || sequences == 0 || sequences > loaded::SEQUENCES {
        return Err(Error::config(format!(
            "--most is {most} and --sequences {sequences}, but they must be at least {SHORTEST}, and between 1 and {}",
            loaded::SEQUENCES
        )));
    }
    let files = args.model.open()?;
    let mut runner = loaded::load(args.model.gpu()?, &files, &args.model, most + loaded::ROOM, 64)?;
    let mut points: Vec<(usize, (f64, f64, f64))> = Vec::new();
    for asked in lengths(most) {
        let workload = runner.fit(Workload::Decode { rows: sequences, context: asked });
        let Workload::Decode { context, .. } = workload else { continue };
        if points.last().is_some_and(|(longest, _)| context <= *longest) {
            break;
        }
        let times = runner.step_times(workload, args.repeats)?;
        points.push((context, spread(times.iter().map(|time| time.as_secs_f64() * 1e3))));
    }
    let adapter = runner.info().adapter;
    let slope = slope(&points.iter().map(|(context, (median, ..))| (*context as f64, *median)).collect::<Vec<_>>());
    let _reader = if args.json {
        let lines = points.iter().map(|(context, (median, least, most))| {
            json!({"context": context, "step_ms": median, "fastest_ms": least, "slowest_ms": most})
        });
        output::write_json(&json!({
            "bench": "context", "adapter": adapter, "model": files.source_name, "sequences": sequences,
            "ms_per_1000_tokens": 1000.0 * slope, "steps": lines.collect::<Vec<_>>(),
        }))?
    } else {
        let mut table = Table::new(&["context", "ms a step", "spread", "tok/s"]);
        for (context, (median, least, most)) in &points {
            let rate = sequences as f64 * 1e3 / median;
            let spread = format!("{}..{}", number(*least), number(*most));
            table.row(vec![context.to_string(), number(*median), spread, number(rate)]);
        }
        output::write(&format!(
            "decode steps of {sequences} sequences, {}, on {adapter}\n{table}  {} ms more for each 1000 tokens\n",
            files.source_name,
            number(1000.0 * slope)
        ))?
    };
    #[cfg(feature = "plot")]
    if let Some(path) = &args.out {
        use octavo::plot::{Chart, Line, Series};
        let line = points.iter().map(|(context, (median, ..))| (*context as f64, *median)).collect();
        let chart = Chart {
            subtitle: format!("{sequences} sequences, {}, on {adapter}", files.source_name),
            x_label: "tokens before".into(),
            y_label: "decode step, ms".into(),
            ..Chart::new("Decoding against the length of the context", Series::Lines(vec![Line::new("", line)]))
        };
        super::report::make_folder(path)?;
        chart.save(path)?;
    }
    Ok(Outcome::Success)
}

/// Twice as long each time, and at last `most`.
fn lengths(most: usize) -> impl Iterator<Item = usize> {
    let doubled = std::iter::successors(Some(SHORTEST), |length| Some(2 * length));
    doubled.take_while(move |length| *length < most).chain([most])
}

/// Least squares through the points.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len().max(1) as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let above: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let below: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if below > 0.0 { above / below } else { 0.0 }
}

#[cfg(test)]
mod tests {
    #[test]
    fn lengths_double_and_end_where_they_were_asked_to() {
        assert_eq!(super::lengths(1000).collect::<Vec<_>>(), [128, 256, 512, 1000]);
        assert_eq!(super::lengths(256).collect::<Vec<_>>(), [128, 256]);
        assert_eq!(super::lengths(128).collect::<Vec<_>>(), [128]);
    }

    #[test]
    fn the_slope_of_a_line_is_its_own() {
        assert_eq!(super::slope(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]), 2.0);
        assert_eq!(super::slope(&[(1.0, 5.0)]), 0.0);
    }
}
