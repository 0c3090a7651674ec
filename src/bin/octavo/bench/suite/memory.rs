//! Paged against static KV memory: how many requests fit, and how much of the memory holds anything.

use super::super::device::Batching;
use super::super::report::{Table, number, percent};
use super::{Bench, Conditions, mock};
use octavo::base::BLOCK_TOKENS;
use octavo::error::Result;
use octavo::sampling::SamplingParams;
use octavo::sched::SchedulerConfig;
use octavo::sim::{Arrivals, Lengths, Run, Slo, Summary, Workload, ratio};
use serde_json::{Value, json};

const BLOCKS: usize = 256;
const PROMPT: usize = 20;
const MAX_OUTPUT: usize = 128;
/// What a server reserves that knows no more than the longest sequence it accepts.
const CONTEXT: usize = 512;
const STEP_MICROS: u64 = 2000;
const PREFILL_MICROS: u64 = 100;

/// A way to give out memory.
struct Way {
    key: &'static str,
    name: String,
    /// Sequences that may run at once.
    most: usize,
}

pub fn run(conditions: &Conditions) -> Result<Bench> {
    let (requests, longest) = if conditions.fast { (60, 60) } else { (200, MAX_OUTPUT) };
    let pool = BLOCKS * BLOCK_TOKENS;
    let fits = |tokens: usize| BLOCKS / tokens.div_ceil(BLOCK_TOKENS);
    let ways = [
        Way { key: "paged", name: "paged: blocks on demand".into(), most: (BLOCKS / 4).min(64) },
        Way { key: "longest", name: format!("static: {} tokens each", PROMPT + longest), most: fits(PROMPT + longest) },
        Way { key: "context", name: format!("static: {CONTEXT} tokens each"), most: fits(CONTEXT) },
    ];
    let workload = Workload {
        requests,
        input: Lengths::Fixed(PROMPT),
        output: Lengths::Uniform { low: 1, high: longest },
        arrivals: Arrivals::AtOnce,
        shared_prefix: 0,
        id_limit: super::super::throughput::ID_LIMIT,
        params: SamplingParams::default(),
        seed: conditions.seed,
    };
    let mut table =
        Table::new(&["memory", "most at once", "mean at once", "memory in use", "seconds", "tok/s", "preempted"]);
    let mut figures = serde_json::Map::new();
    let mut runs: Vec<(Way, Run)> = Vec::new();
    for way in ways {
        let mut device = mock(BLOCKS as u32, way.most as u32, 4096, PREFILL_MICROS, STEP_MICROS);
        let config = SchedulerConfig { prefix_cache: false, max_steps: 1, ..device.scheduling()? };
        let run = device.run(config, workload.sequences(), Batching::Continuous)?;
        let summary = Summary::of(&run, &Slo::default(), |_| true);
        let mean = run.mean_over_time(|sample| sample.running as f64);
        let peak = run.samples.iter().map(|sample| sample.running).max().unwrap_or(0);
        let share = ratio(run.mean_over_time(|sample| sample.tokens_held as f64), pool as f64);
        table.row(vec![
            way.name.clone(),
            peak.to_string(),
            number(mean),
            percent(share),
            number(summary.seconds),
            number(summary.output_tokens_per_second),
            summary.preemptions.to_string(),
        ]);
        figures.insert(
            way.key.into(),
            json!({"most": peak, "mean_running": mean, "memory_share": share, "summary": summary}),
        );
        runs.push((way, run));
    }
    figures.insert("requests".into(), requests.into());
    Ok(Bench {
        name: "2-memory",
        text: format!(
            "{requests} requests at once, prompts of {PROMPT} tokens, outputs of 1 to {longest}, KV memory for {pool} \
             tokens. Static memory reserves each request's longest extent before it starts. In use: share of the memory \
             that holds a token's keys and values, on average over the run."
        ),
        table,
        result: format!(
            "  paging runs {} at once where reserving the context runs {}",
            figures["paged"]["most"], figures["context"]["most"]
        ),
        figures: Value::Object(figures),
        #[cfg(feature = "plot")]
        figure: picture(&runs, pool),
    })
}

#[cfg(feature = "plot")]
fn picture(runs: &[(Way, Run)], pool: usize) -> octavo::plot::Figure {
    use octavo::plot::{Chart, Figure, Line, Series};
    let curves = |y: &dyn Fn(&octavo::sim::Sample) -> f64| {
        let curve = |(way, run): &(Way, Run)| {
            Line::new(&way.name, run.samples.iter().map(|sample| (sample.micros as f64 / 1e3, y(sample))).collect())
        };
        Series::Steps(runs.iter().map(curve).collect())
    };
    let at_once = Chart {
        x_label: "milliseconds".into(),
        y_label: "requests running".into(),
        ..Chart::new("More requests fit", curves(&|sample| sample.running as f64))
    };
    let in_use = Chart {
        x_label: "milliseconds".into(),
        y_label: "% of the memory that holds tokens".into(),
        ..Chart::new("Less memory stands empty", curves(&|sample| 100.0 * sample.tokens_held as f64 / pool as f64))
    };
    Figure { title: "Paged against static KV memory".into(), columns: 2, panels: vec![at_once, in_use] }
}
