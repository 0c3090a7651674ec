//! `octavo generate`: continue prompts, one of them as it is written, many of them together.

use crate::Outcome;
use crate::interrupt::Interrupt;
use crate::options::{EngineArgs, SamplingArgs};
use crate::output::{self, Reader, milliseconds};
use crate::progress::{RunBar, closing_line};
use crate::prompts;
use octavo::base::TokenId;
use octavo::engine::{Request, RequestOutput};
use octavo::error::{Error, Result};
use octavo::llm::{Flow, Llm, RunNews};
use serde::Serialize;
use std::collections::BTreeMap;

const EXAMPLES: &str = "\
Examples:
  octavo generate --model M --prompt \"The capital of France is\" --max-tokens 20
  octavo generate --model M --prompt-tokens 1,2,3 --json
  octavo generate --model M --prompts prompts.jsonl --json --metrics figures.json > results.jsonl

A line of prompts.jsonl holds `prompt` or `prompt_token_ids`, and may override max_tokens,
temperature, top_k, top_p, min_p, seed, ignore_eos and stop (a text or a list):
  {\"prompt\": \"Once upon a time\", \"max_tokens\": 50, \"temperature\": 0.8, \"seed\": 1}

With --json, a line on stdout for each prompt, in their order:
  {\"index\", \"prompt_token_ids\", \"token_ids\", \"text\",
   \"finish_reason\": \"stop\" | \"length\" | \"cancelled\",
   \"num_cached_tokens\", \"ttft_ms\", \"latency_ms\"}, or {\"index\", \"error\"}";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    prompt: PromptArgs,
    /// Write one JSON line for each prompt instead of its text
    #[arg(long)]
    json: bool,
    /// Write the run's figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    metrics: Option<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Exactly one of these.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct PromptArgs {
    /// A text to continue, as it stands (no chat template)
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Token ids to continue
    #[arg(long, value_name = "1,2,3", value_delimiter = ',')]
    prompt_tokens: Option<Vec<TokenId>>,
    /// A file of prompts, one JSON object a line; `-` reads standard input
    #[arg(long, value_name = "FILE.jsonl")]
    prompts: Option<String>,
}

pub fn run(args: Args) -> Result<Outcome> {
    let file = args.prompt.prompts.as_deref().map(prompts::read).transpose()?;
    args.sampling.check()?;
    // Learn that the figures cannot be written before the work, not after it.
    let metrics_file = args.metrics.as_deref().map(|path| create(path).map(|file| (path, file))).transpose()?;
    let llm = args.engine.open()?;
    let params = args.sampling.params(&llm.default_params())?;
    let requests = match (args.prompt, file) {
        (_, Some(file)) => file.requests(&params)?,
        (PromptArgs { prompt: Some(text), .. }, None) => vec![Request::new(text, params)],
        (PromptArgs { prompt_tokens: Some(tokens), .. }, None) => vec![Request::new(tokens, params)],
        _ => return Err(Error::config("give one of --prompt, --prompt-tokens and --prompts")),
    };
    let count = requests.len();
    let alone = count == 1 && requests[0].params.n == 1;
    let interrupt = Interrupt::install(llm.engine());
    let style = match (args.json, alone) {
        (true, _) => Style::JsonLines,
        (false, true) => Style::AsItComes,
        (false, false) => Style::Sections,
    };
    let mut report = Report {
        bar: if style == Style::AsItComes { RunBar::hidden() } else { RunBar::new(count) },
        style,
        done: BTreeMap::new(),
        next: 0,
        failed: 0,
        broken: None,
    };
    interrupt.during(|| {
        llm.run(requests, |index, news| {
            let flow = report.take(&llm, index, news);
            if flow == Flow::GoOn && interrupt.asked() { Flow::Drain } else { flow }
        });
    });
    report.bar.clear();
    let metrics = llm.engine().metrics();
    eprintln!("{}", closing_line(&llm, &metrics));
    if report.failed > 0 {
        eprintln!("{} of {count} prompts failed", report.failed);
    }
    if let Some((path, file)) = metrics_file {
        serde_json::to_writer_pretty(file, &metrics)
            .map_err(|error| Error::load(format!("cannot write the figures to {path}: {error}")))?;
    }
    match (report.broken, report.failed > 0 || interrupt.asked()) {
        (Some(error), _) => Err(error),
        (None, true) => Ok(Outcome::Failure),
        (None, false) => Ok(Outcome::Success),
    }
}

fn create(path: &str) -> Result<std::fs::File> {
    std::fs::File::create(path).map_err(|error| Error::load(format!("cannot create {path}: {error}")))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// The text of one prompt, as it is written.
    AsItComes,
    /// A heading and the text of each prompt.
    Sections,
    JsonLines,
}

/// Puts results in order and writes them.
struct Report {
    style: Style,
    bar: RunBar,
    /// Results that wait for those before them.
    done: BTreeMap<usize, Result<RequestOutput>>,
    next: usize,
    failed: usize,
    /// stdout could not be written.
    broken: Option<Error>,
}

/// A result with `--json`. The order of the fields is that of the line.
#[derive(Serialize)]
struct Line<'a> {
    index: usize,
    prompt_token_ids: &'a [TokenId],
    token_ids: &'a [TokenId],
    text: &'a str,
    finish_reason: &'static str,
    num_cached_tokens: usize,
    ttft_ms: Option<f64>,
    latency_ms: f64,
    /// The second to the last output, with n above 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alternatives: Vec<AlternativeLine<'a>>,
}

#[derive(Serialize)]
struct AlternativeLine<'a> {
    token_ids: &'a [TokenId],
    text: &'a str,
    finish_reason: &'static str,
    seed: u64,
}

#[derive(Serialize)]
struct FailedLine {
    index: usize,
    error: String,
}

impl Report {
    fn take(&mut self, llm: &Llm, index: usize, news: RunNews<'_>) -> Flow {
        self.bar.speeds(llm);
        let written = match news {
            RunNews::Delta { text, .. } if self.style == Style::AsItComes => output::write(text),
            RunNews::Delta { .. } => return Flow::GoOn,
            RunNews::Finished(result) => {
                self.bar.finished_one();
                self.done.insert(index, result);
                self.write_ready()
            }
        };
        match written {
            Ok(Reader::Present) => Flow::GoOn,
            Ok(Reader::Gone) => Flow::Abandon,
            Err(error) => {
                self.broken = Some(error);
                Flow::Abandon
            }
        }
    }

    /// Writes the results whose turn it is.
    fn write_ready(&mut self) -> Result<Reader> {
        while let Some(result) = self.done.remove(&self.next) {
            self.failed += usize::from(result.is_err());
            if self.bar.aside(|| self.write_one(self.next, result))? == Reader::Gone {
                return Ok(Reader::Gone);
            }
            self.next += 1;
        }
        Ok(Reader::Present)
    }

    fn write_one(&self, index: usize, result: Result<RequestOutput>) -> Result<Reader> {
        match (self.style, result) {
            (Style::JsonLines, Ok(output)) => output::write_json(&Line {
                index,
                prompt_token_ids: &output.prompt_token_ids,
                token_ids: &output.token_ids,
                text: &output.text,
                finish_reason: output.finish_reason.name(),
                num_cached_tokens: output.usage.cached_tokens,
                ttft_ms: output.timings.first_token.map(milliseconds),
                latency_ms: milliseconds(output.timings.total),
                alternatives: (output.alternatives.iter())
                    .map(|other| AlternativeLine {
                        token_ids: &other.token_ids,
                        text: &other.text,
                        finish_reason: other.finish_reason.name(),
                        seed: other.seed,
                    })
                    .collect(),
            }),
            (Style::JsonLines, Err(error)) => output::write_json(&FailedLine { index, error: error.to_string() }),
            (Style::AsItComes, Ok(_)) => output::write("\n"),
            (Style::Sections, Ok(output)) => {
                let mut text = format!("=== prompt {index}\n{}\n", output.text);
                for (number, other) in (2..).zip(&output.alternatives) {
                    text.push_str(&format!("=== prompt {index}, output {number}\n{}\n", other.text));
                }
                output::write(&text)
            }
            (_, Err(error)) => {
                eprintln!("error: prompt {index}: {error}");
                Ok(Reader::Present)
            }
        }
    }
}
