//! `octavo bench suite`: five comparisons, each with a table, figures as JSON and a picture.
//!
//! On the mock they take seconds and depend on nothing but the seed. Its device needs a fixed time for each step, whatever
//! its rows, and a fixed time for each prompt token: the simplest model of a device that decoding leaves waiting for memory.

mod batching;
mod chunking;
mod memory;
mod prefix;
mod speculation;

use super::device::Device;
use super::report::{Table, save_json};
use crate::Outcome;
use crate::output;
use octavo::error::Result;
use octavo::runner::mock::MockOptions;
use serde_json::{Value, json};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  octavo bench suite                     five tables, from a device that exists in numbers only, in virtual time
  octavo bench suite --fast              the same, smaller
  octavo bench suite --out bench         also bench/suite.json and a picture of each: bench/1-batching.svg, ...
  octavo bench suite --model M --fast    batching, prefix cache and chunked prefill on a model, in real time

The five:
  1 batching      requests join and leave the batch at every step, or a batch is filled and run to its end
  2 memory        KV in blocks on demand, or a place for the longest output reserved for each request
  3 prefix cache  a common beginning computed once, or every time
  4 speculation   tokens for each verification by acceptance rate and drafts: formula against a drawn process
  5 chunking      long prompts in pieces among others, or whole";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A model, in real time, for benches 1, 3 and 5; without it, the mock runs all five in virtual time
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    /// GPU to use: part of its name, or its number in `octavo doctor`
    #[arg(long, value_name = "NAME|INDEX", requires = "model")]
    adapter: Option<String>,
    /// Fewer and shorter requests
    #[arg(long)]
    fast: bool,
    /// Decides lengths, ids and draws
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
    /// Folder for suite.json and the pictures
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Format of the pictures
    #[cfg(feature = "plot")]
    #[arg(long, value_name = "FORMAT", default_value = "svg", value_parser = ["svg", "png"])]
    format: String,
    /// No pictures
    #[arg(long)]
    no_plot: bool,
    /// One line of JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// One bench, done.
struct Bench {
    /// Also the name of the picture.
    name: &'static str,
    /// What was compared, and under which conditions.
    text: String,
    table: Table,
    /// What one should take home.
    result: String,
    figures: Value,
    #[cfg(feature = "plot")]
    figure: octavo::plot::Figure,
}

/// What all benches are told.
struct Conditions {
    fast: bool,
    seed: u64,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let conditions = Conditions { fast: args.fast, seed: args.seed };
    let mut model = match &args.model {
        None => None,
        Some(model) => {
            let mut options = vec!["--max-num-seqs", "32", "--max-num-batched-tokens", "512", "--max-model-len", "512"];
            options.extend(args.adapter.iter().flat_map(|adapter| ["--adapter", adapter.as_str()]));
            Some(Device::load_with(model, &options)?)
        }
    };
    let mut done = Vec::new();
    let mut report = |bench: Bench| -> Result<output::Reader> {
        let text = format!("{}\n{}\n{}{}\n\n", bench.name, bench.text, bench.table, bench.result);
        done.push(bench);
        if args.json { Ok(output::Reader::Present) } else { output::write(&text) }
    };
    // Whoever reads may leave; files are written all the same.
    let mut reader = report(batching::run(model.as_mut(), &conditions)?)?;
    if model.is_none() {
        reader = report(memory::run(&conditions)?)?;
    }
    reader = later(reader, report(prefix::run(model.as_mut(), &conditions)?)?);
    if model.is_none() {
        reader = later(reader, report(speculation::run(&conditions))?);
    }
    reader = later(reader, report(chunking::run(model.as_mut(), &conditions)?)?);
    let value = json!({
        "bench": "suite",
        "device": model.as_ref().map_or("mock, virtual time", Device::name),
        "fast": args.fast,
        "seed": args.seed,
        "benches": done.iter().map(|bench| json!({"name": bench.name, "figures": bench.figures})).collect::<Vec<_>>(),
    });
    if args.json && reader == output::Reader::Present {
        let _reader = output::write_json(&value)?;
    }
    if let Some(folder) = &args.out {
        save_json(&folder.join("suite.json"), &value)?;
        #[cfg(feature = "plot")]
        if !args.no_plot {
            for bench in &done {
                bench.figure.save(&folder.join(format!("{}.{}", bench.name, args.format)))?;
            }
        }
        eprintln!("written to {}", folder.display());
    }
    Ok(Outcome::Success)
}

fn later(before: output::Reader, now: output::Reader) -> output::Reader {
    if before == output::Reader::Gone { before } else { now }
}

/// A mock with so many blocks and slots.
fn mock(blocks: u32, slots: u32, rows: u32, prefill_micros: u64, step_micros: u64) -> Device {
    let mut options = MockOptions { prefill_micros, step_micros, latency_micros: 0, ..MockOptions::default() };
    options.capacity.block_count = blocks;
    options.capacity.slot_count = slots;
    options.capacity.max_batched_tokens = rows;
    options.capacity.max_model_len = 1024;
    options.capacity.vocab_size = super::throughput::ID_LIMIT;
    Device::Mock(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Conditions = Conditions { fast: true, seed: 42 };

    fn figure(bench: &Bench, path: &str) -> f64 {
        bench.figures.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {}", bench.figures))
    }

    #[test]
    fn joining_and_leaving_at_every_step_beats_filled_batches() {
        let bench = batching::run(None, &FAST).unwrap();
        let [continuous, naive] =
            ["continuous", "naive"].map(|name| figure(&bench, &format!("/{name}/output_tokens_per_second")));
        assert!(continuous > 1.5 * naive, "{continuous} against {naive}");
        assert_eq!(figure(&bench, "/continuous/output_tokens"), figure(&bench, "/naive/output_tokens"));
    }

    #[test]
    fn blocks_on_demand_run_more_at_once_than_reserved_places() {
        let bench = memory::run(&FAST).unwrap();
        let of = |name: &str, what: &str| figure(&bench, &format!("/{name}/{what}"));
        assert!(of("paged", "mean_running") > 2.0 * of("context", "mean_running"));
        assert!(of("paged", "memory_share") > of("longest", "memory_share"));
        assert!(of("longest", "memory_share") > of("context", "memory_share"));
    }

    #[test]
    fn a_shared_beginning_is_computed_once() {
        let bench = prefix::run(None, &FAST).unwrap();
        // All but the first request find its 48 tokens.
        let requests = figure(&bench, "/requests");
        assert_eq!(figure(&bench, "/on/cached_tokens"), 48.0 * (requests - 1.0));
        assert_eq!(figure(&bench, "/off/cached_tokens"), 0.0);
        assert!(figure(&bench, "/on/ttft_ms/mean") < 0.7 * figure(&bench, "/off/ttft_ms/mean"));
    }

    #[test]
    fn chunks_and_short_prompts_passing_long_ones_bring_first_tokens_sooner() {
        let bench = chunking::run(None, &FAST).unwrap();
        let short = |name: &str| figure(&bench, &format!("/{name}/short_ttft_ms/mean"));
        assert!(short("passing") < 0.5 * short("whole"), "{} {}", short("passing"), short("whole"));
        let gap = |name: &str| figure(&bench, &format!("/{name}/itl_ms/max"));
        assert!(gap("passing") < 0.5 * gap("whole"), "{} {}", gap("passing"), gap("whole"));
    }
}
