//! Chunked prefill: short requests that arrive together with long prompts.

use super::super::device::{Batching, Device};
use super::super::report::{Table, number};
use super::{Bench, Conditions, mock};
use octavo::error::Result;
use octavo::sampling::SamplingParams;
use octavo::sched::{NewSequence, SchedulerConfig};
use octavo::sim::{Arrivals, Lengths, Slo, Summary, Workload};
use serde_json::{Value, json};

const LONG: usize = 5;
const SHORT: usize = 5;
const SHORT_PROMPT: usize = 16;
const MAX_SEQS: usize = 10;
const BLOCKS: u32 = 256;
const CHUNK: usize = 32;
const STEP_MICROS: u64 = 2000;
const PREFILL_MICROS: u64 = 100;

pub fn run(model: Option<&mut Device>, conditions: &Conditions) -> Result<Bench> {
    let (long_prompt, output) = if conditions.fast { (160, 12) } else { (320, 24) };
    let mut mocked = mock(BLOCKS, MAX_SEQS as u32, 512, PREFILL_MICROS, STEP_MICROS);
    let device = model.unwrap_or(&mut mocked);
    let usual = SchedulerConfig {
        max_num_seqs: MAX_SEQS,
        max_model_len: 512,
        max_num_batched_tokens: 512,
        prefix_cache: false,
        host_cache: false,
        max_steps: 1,
        ..device.scheduling()?
    };
    let chunked =
        SchedulerConfig { max_num_batched_tokens: 2 * CHUNK, long_prefill_token_threshold: CHUNK, ..usual.clone() };
    let ways = [
        ("whole", "whole prompts", SchedulerConfig { chunked_prefill: false, ..usual }),
        ("chunked", "chunks in turn", chunked.clone()),
        ("passing", "chunks, short ones pass", SchedulerConfig { max_num_partial_prefills: 4, ..chunked }),
    ];
    let requests = requests(long_prompt, output, device.vocab_size()?, conditions.seed);
    let mut table =
        Table::new(&["prefill", "TTFT of short, ms", "of long", "of all", "longest gap between tokens", "seconds"]);
    let (mut figures, mut runs) = (serde_json::Map::new(), Vec::new());
    for (key, name, config) in ways {
        let run = device.run(config, requests.clone(), Batching::Continuous)?;
        let of = |which: fn(usize) -> bool| Summary::of(&run, &Slo::default(), which);
        let (all, long, short) = (of(|_| true), of(|number| number < LONG), of(|number| number >= LONG));
        let mut row = vec![name.to_string()];
        row.extend([short.ttft_ms.mean, long.ttft_ms.mean, all.ttft_ms.mean, all.itl_ms.max, all.seconds].map(number));
        table.row(row);
        figures.insert(
            key.into(),
            json!({
                "short_ttft_ms": short.ttft_ms, "long_ttft_ms": long.ttft_ms, "ttft_ms": all.ttft_ms,
                "itl_ms": all.itl_ms, "seconds": all.seconds,
            }),
        );
        runs.push((name, short.ttft_ms, long.ttft_ms, all.itl_ms));
    }
    let mean = |key: &str| figures[key]["short_ttft_ms"]["mean"].as_f64().unwrap_or(0.0);
    let result = format!(
        "  short requests have their first token after {} ms instead of {} ms",
        number(mean("passing")),
        number(mean("whole"))
    );
    Ok(Bench {
        name: "5-chunked-prefill",
        text: format!(
            "{LONG} prompts of {long_prompt} tokens and, just behind them, {SHORT} of {SHORT_PROMPT}, {output} tokens out, on {}. \
             Chunks have {CHUNK} tokens. In turn: one prompt at a time is partly computed. Short ones pass: up to four are, of which one is long.",
            device.name()
        ),
        table,
        result,
        figures: Value::Object(figures),
        #[cfg(feature = "plot")]
        figure: picture(&runs, device.name()),
    })
}

/// The long ones first, all at once.
fn requests(long_prompt: usize, output: usize, vocab_size: u32, seed: u64) -> Vec<NewSequence> {
    let of = |requests: usize, input: usize, seed: u64| Workload {
        requests,
        input: Lengths::Fixed(input),
        output: Lengths::Fixed(output),
        arrivals: Arrivals::AtOnce,
        shared_prefix: 0,
        id_limit: super::super::throughput::ID_LIMIT.min(vocab_size),
        params: SamplingParams::default(),
        seed,
    };
    let mut all = of(LONG, long_prompt, seed).sequences();
    all.extend(of(SHORT, SHORT_PROMPT, !seed).sequences());
    all
}

#[cfg(feature = "plot")]
fn picture(
    runs: &[(&str, octavo::sim::Spread, octavo::sim::Spread, octavo::sim::Spread)],
    device: &str,
) -> octavo::plot::Figure {
    use octavo::plot::{BarSet, Chart, Figure, Series};
    let groups: Vec<String> = runs.iter().map(|(name, ..)| name.replace("chunks, s", "s")).collect();
    let first = Chart {
        subtitle: format!("means, on {device}"),
        y_label: "ms".into(),
        ..Chart::new(
            "Time to first token",
            Series::Bars {
                groups: groups.clone(),
                sets: vec![
                    BarSet::new("short prompts", runs.iter().map(|run| run.1.mean).collect()),
                    BarSet::new("long prompts", runs.iter().map(|run| run.2.mean).collect()),
                ],
            },
        )
    };
    let gaps = Chart {
        subtitle: "of a request that has begun to answer".into(),
        y_label: "ms".into(),
        ..Chart::new(
            "Longest gap between two tokens",
            Series::Bars { groups, sets: vec![BarSet::new("", runs.iter().map(|run| run.3.max).collect())] },
        )
    };
    Figure { title: "Long prompts whole or in chunks".into(), columns: 2, panels: vec![first, gaps] }
}
