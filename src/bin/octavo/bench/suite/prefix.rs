//! The prefix cache: many prompts that begin alike.

use super::super::device::{Batching, Device};
use super::super::report::{Table, number, percent};
use super::{Bench, Conditions, mock};
use octavo::base::BLOCK_TOKENS;
use octavo::error::Result;
use octavo::sampling::SamplingParams;
use octavo::sched::SchedulerConfig;
use octavo::sim::{Arrivals, Lengths, Run, Slo, Summary, Workload, ratio};
use serde_json::json;

const SHARED: usize = 48;
const UNIQUE: usize = 16;
const BLOCKS: u32 = 256;
const STEP_MICROS: u64 = 1000;
const PREFILL_MICROS: u64 = 100;

pub fn run(model: Option<&mut Device>, conditions: &Conditions) -> Result<Bench> {
    let (requests, output) = if conditions.fast { (20, 16) } else { (30, 30) };
    let mut mocked = mock(BLOCKS, 32, 4096, PREFILL_MICROS, STEP_MICROS);
    let device = model.unwrap_or(&mut mocked);
    let config = |cache: bool, device: &Device| -> Result<SchedulerConfig> {
        let usual = device.scheduling()?;
        Ok(SchedulerConfig { prefix_cache: cache, host_cache: cache && usual.host_cache, max_steps: 1, ..usual })
    };
    let mut workload = Workload {
        requests: 1,
        input: Lengths::Fixed(UNIQUE),
        output: Lengths::Fixed(output),
        arrivals: Arrivals::AtOnce,
        shared_prefix: SHARED,
        id_limit: super::super::throughput::ID_LIMIT.min(device.vocab_size()?),
        params: SamplingParams::default(),
        seed: !conditions.seed,
    };
    // One request alone, with another prompt: how long a prompt takes here. The next ones come that far apart, so that the
    // first one's blocks are there for the second.
    let alone = device.run(config(false, device)?, workload.sequences(), Batching::Continuous)?;
    let gap = Summary::of(&alone, &Slo::default(), |_| true).ttft_ms.mean;
    workload.requests = requests;
    workload.seed = conditions.seed;
    workload.arrivals = Arrivals::Every { micros: (gap * 1000.0) as u64 + 1 };
    let [on, off] = [true, false].map(|cache| -> Result<(Run, Summary)> {
        let run = device.run(config(cache, device)?, workload.sequences(), Batching::Continuous)?;
        let summary = Summary::of(&run, &Slo::default(), |_| true);
        Ok((run, summary))
    });
    let (on, off) = (on?, off?);
    let hits = |summary: &Summary| ratio(summary.cached_tokens as f64, summary.input_tokens as f64);
    let mut table =
        Table::new(&["prefix cache", "hit rate", "prompt tokens computed", "TTFT mean ms", "p95", "seconds", "tok/s"]);
    for (name, (run, summary)) in [("on", &on), ("off", &off)] {
        table.row(vec![
            name.into(),
            percent(hits(summary)),
            run.stats.prefill_tokens.to_string(),
            number(summary.ttft_ms.mean),
            number(summary.ttft_ms.p95),
            number(summary.seconds),
            number(summary.output_tokens_per_second),
        ]);
    }
    let sooner = ratio(off.1.ttft_ms.mean, on.1.ttft_ms.mean);
    Ok(Bench {
        name: "3-prefix-cache",
        text: format!(
            "{requests} prompts of {SHARED} shared and {UNIQUE} own tokens ({} of {} blocks shared), {output} tokens out, one \
             arriving every {} ms, the time that such a prompt takes alone, on {}. Only whole blocks are shared, and the \
             first request finds nothing.",
            SHARED / BLOCK_TOKENS,
            (SHARED + UNIQUE) / BLOCK_TOKENS,
            number(gap),
            device.name()
        ),
        table,
        result: format!("  the cache brings first tokens {sooner:.2} times as soon"),
        figures: json!({
            "requests": requests, "shared_tokens": SHARED, "unique_tokens": UNIQUE, "gap_ms": gap, "hit_rate": hits(&on.1),
            "on": on.1, "off": off.1, "computed_on": on.0.stats.prefill_tokens, "computed_off": off.0.stats.prefill_tokens,
        }),
        #[cfg(feature = "plot")]
        figure: picture(&on, &off, device.name()),
    })
}

#[cfg(feature = "plot")]
fn picture(on: &(Run, Summary), off: &(Run, Summary), device: &str) -> octavo::plot::Figure {
    use octavo::plot::{BarSet, Chart, Figure, Line, Series};
    let computed = Chart {
        subtitle: format!("on {device}"),
        y_label: "prompt tokens computed".into(),
        ..Chart::new(
            "Work",
            Series::Bars {
                groups: vec!["cache on".into(), "cache off".into()],
                sets: vec![BarSet::new("", vec![on.0.stats.prefill_tokens as f64, off.0.stats.prefill_tokens as f64])],
            },
        )
    };
    let curve = |name: &str, run: &Run| {
        let points = run.timelines.iter().enumerate();
        let first = |(index, timeline): (usize, &octavo::sim::Timeline)| Some((index as f64, timeline.ttft_ms()?));
        Line::new(name, points.filter_map(first).collect())
    };
    let waiting = Chart {
        subtitle: "the first request pays for the others".into(),
        x_label: "request, by arrival".into(),
        y_label: "time to first token, ms".into(),
        ..Chart::new("Waiting", Series::Lines(vec![curve("cache on", &on.0), curve("cache off", &off.0)]))
    };
    Figure {
        title: "Prompts that begin alike, with and without the prefix cache".into(),
        columns: 2,
        panels: vec![computed, waiting],
    }
}
