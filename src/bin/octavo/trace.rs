//! `octavo trace`: pictures of what the scheduler did.

use crate::Outcome;
use clap::{Args, Subcommand};
use octavo::error::{Error, Result};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  octavo generate --model M --prompts prompts.jsonl --trace run.json      record
  octavo trace render run.json -o run.svg                                 draw the whole run
  octavo trace render run.json -o start.png --to 200ms                    its first 200 ms, as pixels
  octavo trace render run.json -o late.svg --from 1.5s --max-requests 50  50 requests from there on

The picture shows a bar for each sequence (waiting, prefill with the tokens of each chunk, decode with the tokens that
came, preempted, swapped out), what the device did, and below them the KV memory and the queue, on one time axis.

To look closer, open the trace itself in https://ui.perfetto.dev or chrome://tracing; nothing is uploaded. To see whether
the scheduler still decides the same, use `octavo replay`. A trace holds the token ids of all prompts and answers.";

#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum Command {
    /// Draw a trace as SVG or PNG
    Render(RenderArgs),
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RenderArgs {
    /// A file that `--trace` wrote
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// Where the picture goes: a name that ends in .svg or .png
    #[arg(short, long, value_name = "PICTURE")]
    out: PathBuf,
    /// Width in pixels; a PNG has twice as many, for dense screens
    #[arg(long, value_name = "PIXELS", default_value_t = 1200.0)]
    width: f64,
    /// First moment, since the beginning: seconds, or a number with `s`, `ms` or `us` [default: 0]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    from: Option<f64>,
    /// Last moment [default: the end]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    to: Option<f64>,
    /// Draw only the first so many sequences, until they end [default: all; of thousands, one in two, three or so]
    #[arg(long, value_name = "N")]
    max_requests: Option<usize>,
}

pub fn run(command: &Command) -> Result<Outcome> {
    let Command::Render(args) = command;
    render(args)
}

#[cfg(feature = "plot")]
fn render(args: &RenderArgs) -> Result<Outcome> {
    use octavo::plot::canvas::Format;
    use octavo::trace::{RenderOptions, Timeline, TraceReader};
    // Before a long trace is read for nothing.
    Format::of(&args.out)?;
    let timeline = Timeline::read(&mut TraceReader::open(&args.trace)?)?;
    let options = RenderOptions { width: args.width, from: args.from, to: args.to, max_rows: args.max_requests };
    octavo::trace::render(&timeline, &options)?.save(&args.out)?;
    if timeline.truncated {
        eprintln!("warning: {} stops in the middle; drawn as far as it goes", args.trace.display());
    }
    let _reader = crate::output::write(&format!("{}\n", args.out.display()))?;
    Ok(Outcome::Success)
}

#[cfg(not(feature = "plot"))]
fn render(args: &RenderArgs) -> Result<Outcome> {
    let RenderArgs { trace, out, width: _, from: _, to: _, max_requests: _ } = args;
    Err(Error::config(format!(
        "{} cannot be drawn as {}: this octavo was built without the feature `plot`; build it with \
         `--features plot`, or open the trace in https://ui.perfetto.dev",
        trace.display(),
        out.display()
    )))
}

/// A time on the command line, in seconds.
fn seconds(text: &str) -> Result<f64> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];
    let (number, factor) =
        units.into_iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor))).unwrap_or((text, 1.0));
    let time = number.trim().parse::<f64>().ok().map(|number| number * factor);
    time.filter(|time| time.is_finite() && *time >= 0.0)
        .ok_or_else(|| Error::config(format!("`{text}` is no time; write 1.5, 1.5s, 200ms or 350us")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let cases = [("2", 2.0), ("1.5s", 1.5), ("200ms", 0.2), ("350 us", 350e-6), ("0", 0.0)];
        for (text, expected) in cases {
            assert!((seconds(text).unwrap() - expected).abs() < 1e-12, "{text}");
        }
        for text in ["", "ms", "-1s", "1m", "inf", "NaN"] {
            assert!(seconds(text).unwrap_err().to_string().contains("200ms"), "{text}");
        }
    }
}
