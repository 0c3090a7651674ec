//! Results of `octavo generate` on stdout, in the order of their prompts.

use crate::logprob_view::{self, LogprobLine};
use crate::output::{self, Reader, milliseconds};
use crate::progress::RunBar;
use octavo::base::TokenId;
use octavo::engine::RequestOutput;
use octavo::error::{Error, Result};
use octavo::llm::{Flow, Llm, RunNews};
use octavo::text::Tokenizer;
use serde::Serialize;
use std::collections::BTreeMap;

/// How results are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// The text of one prompt, as it is written.
    AsItComes,
    /// A heading and the text of each prompt.
    Sections,
    JsonLines,
}

/// Puts results in order and writes them.
pub struct Report {
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<LogprobLine>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prompt_logprobs: Vec<LogprobLine>,
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<LogprobLine>,
}

#[derive(Serialize)]
struct FailedLine {
    index: usize,
    error: String,
}

impl Report {
    /// For `count` results.
    pub fn new(style: Style, count: usize) -> Self {
        let bar = if style == Style::AsItComes { RunBar::hidden() } else { RunBar::new(count) };
        Self { style, bar, done: BTreeMap::new(), next: 0, failed: 0, broken: None }
    }

    /// How many failed, and why stdout could not be written, if so.
    pub fn end(self) -> (usize, Option<Error>) {
        self.bar.clear();
        (self.failed, self.broken)
    }

    /// Takes news of prompt `index`.
    pub fn take(&mut self, llm: &Llm, index: usize, news: RunNews<'_>) -> Flow {
        self.bar.speeds(llm);
        let written = match news {
            RunNews::Delta { text, .. } if self.style == Style::AsItComes => output::write(text),
            RunNews::Delta { .. } => return Flow::GoOn,
            RunNews::Finished(result) => {
                self.bar.finished_one();
                self.done.insert(index, result);
                self.write_ready(llm.engine().tokenizer())
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
    fn write_ready(&mut self, tokenizer: Option<&Tokenizer>) -> Result<Reader> {
        while let Some(result) = self.done.remove(&self.next) {
            self.failed += usize::from(result.is_err());
            if self.bar.aside(|| self.write_one(self.next, result, tokenizer))? == Reader::Gone {
                return Ok(Reader::Gone);
            }
            self.next += 1;
        }
        Ok(Reader::Present)
    }

    fn write_one(&self, index: usize, result: Result<RequestOutput>, tokenizer: Option<&Tokenizer>) -> Result<Reader> {
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
                logprobs: logprob_view::lines(tokenizer, &output.logprobs),
                prompt_logprobs: logprob_view::lines(tokenizer, &output.prompt_logprobs),
                alternatives: (output.alternatives.iter())
                    .map(|other| AlternativeLine {
                        token_ids: &other.token_ids,
                        text: &other.text,
                        finish_reason: other.finish_reason.name(),
                        seed: other.seed,
                        logprobs: logprob_view::lines(tokenizer, &other.logprobs),
                    })
                    .collect(),
            }),
            (Style::JsonLines, Err(error)) => output::write_json(&FailedLine { index, error: error.to_string() }),
            (Style::AsItComes, Ok(output)) => output::write(&format!("\n{}", logprob_view::tables(tokenizer, &output))),
            (Style::Sections, Ok(output)) => {
                let tables = logprob_view::tables(tokenizer, &output);
                let mut text = format!("=== prompt {index}\n{}\n{tables}", output.text);
                for (number, other) in (2..).zip(&output.alternatives) {
                    let table = logprob_view::table_if_asked("token", tokenizer, &other.logprobs);
                    text.push_str(&format!("=== prompt {index}, output {number}\n{}\n{table}", other.text));
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
