//! Continuous against naive batching: outputs of different lengths, at once.

use super::super::device::{Batching, Device};
use super::super::report::{Table, number};
use super::{Bench, Conditions, mock};
use octavo::base::BLOCK_TOKENS;
use octavo::error::Result;
use octavo::sampling::SamplingParams;
use octavo::sched::{NewSequence, SchedulerConfig};
use octavo::sim::{Arrivals, Lengths, Random, Run, Slo, Summary, Workload};
use serde_json::json;

const MAX_SEQS: usize = 32;
const NAIVE_BATCH: usize = 8;
const BLOCKS: u32 = 512;
const STEP_MICROS: u64 = 2000;
const PREFILL_MICROS: u64 = 100;
/// After each token, so likely is the end.
const END: f64 = 0.05;

pub fn run(model: Option<&mut Device>, conditions: &Conditions) -> Result<Bench> {
    let (requests, longest) = if conditions.fast { (20, 30) } else { (50, 64) };
    let mut mocked = mock(BLOCKS, MAX_SEQS as u32, 4096, PREFILL_MICROS, STEP_MICROS);
    let device = model.unwrap_or(&mut mocked);
    let work = work(requests, longest, device.vocab_size()?, conditions.seed);
    let config = SchedulerConfig { prefix_cache: false, host_cache: false, max_steps: 1, ..device.scheduling()? };
    let continuous = device.run(config.clone(), work.clone(), Batching::Continuous)?;
    let naive = device.run(config, work, Batching::Naive(NAIVE_BATCH))?;
    let [fast, slow] = [&continuous, &naive].map(|run| Summary::of(run, &Slo::default(), |_| true));
    let computing = |run: &Run| run.mean_over_time(|sample| sample.computing as f64);
    let mut table = Table::new(&["batching", "tok/s", "seconds", "steps", "sequences computing", "E2E p50 ms", "p95"]);
    for (name, run, summary) in [("continuous", &continuous, &fast), ("naive", &naive, &slow)] {
        table.row(vec![
            name.into(),
            number(summary.output_tokens_per_second),
            number(summary.seconds),
            run.stats.steps.to_string(),
            number(computing(run)),
            number(summary.e2e_ms.p50),
            number(summary.e2e_ms.p95),
        ]);
    }
    let gain = fast.output_tokens_per_second / slow.output_tokens_per_second.max(f64::MIN_POSITIVE);
    Ok(Bench {
        name: "1-batching",
        text: format!(
            "{requests} requests with outputs of 1 to {longest} tokens (each ends with probability {END} after every token), \
             on {}. Continuous: up to {MAX_SEQS} at once, joining and leaving at every step. Naive: batches of \
             {NAIVE_BATCH}, each run until its last request is done.",
            device.name()
        ),
        table,
        result: format!("  continuous batching is {gain:.2} times as fast"),
        figures: json!({
            "requests": requests, "longest_output": longest, "block_tokens": BLOCK_TOKENS, "naive_batch": NAIVE_BATCH,
            "max_num_seqs": MAX_SEQS, "continuous": fast, "naive": slow, "gain": gain,
        }),
        #[cfg(feature = "plot")]
        figure: picture(&continuous, &naive, &fast, &slow, device.name()),
    })
}

/// Equal prompts, geometric outputs: the same lengths on every device.
fn work(requests: usize, longest: usize, vocab_size: u32, seed: u64) -> Vec<NewSequence> {
    let workload = Workload {
        requests,
        input: Lengths::Fixed(10),
        output: Lengths::Fixed(longest),
        arrivals: Arrivals::AtOnce,
        shared_prefix: 0,
        id_limit: super::super::throughput::ID_LIMIT.min(vocab_size),
        params: SamplingParams::default(),
        seed,
    };
    let mut random = Random::stream(seed, 1);
    let mut sequences = workload.sequences();
    for new in &mut sequences {
        new.max_tokens = (1..longest as u32).find(|_| random.chance(END)).unwrap_or(longest as u32);
    }
    sequences
}

#[cfg(feature = "plot")]
fn picture(continuous: &Run, naive: &Run, fast: &Summary, slow: &Summary, device: &str) -> octavo::plot::Figure {
    use octavo::plot::{BarSet, Chart, Figure, Line, Series};
    let curve = |name: &str, run: &Run| {
        let mut points: Vec<(f64, f64)> = vec![];
        let mut before = 0.0;
        for sample in &run.samples {
            // What a submission computes for holds from the result before it.
            points.push((before, sample.computing as f64));
            before = sample.micros as f64 / 1e3;
        }
        points.push((before, 0.0));
        let start = points.first().map_or(0.0, |point| point.0);
        Line::new(name, points.into_iter().map(|(x, y)| (x - start, y)).collect())
    };
    let speed = Chart {
        subtitle: format!("outputs of different lengths, on {device}"),
        y_label: "generated tokens per second".into(),
        ..Chart::new(
            "Throughput",
            Series::Bars {
                groups: vec!["continuous".into(), "naive".into()],
                sets: vec![BarSet::new("", vec![fast.output_tokens_per_second, slow.output_tokens_per_second])],
            },
        )
    };
    let rows = Chart {
        subtitle: "a naive batch empties until its longest request is done".into(),
        x_label: "milliseconds".into(),
        y_label: "sequences computing".into(),
        ..Chart::new(
            "How full the batch is",
            Series::Steps(vec![curve("continuous", continuous), curve("naive", naive)]),
        )
    };
    Figure { title: "Continuous against naive batching".into(), columns: 2, panels: vec![speed, rows] }
}
