//! `octavo eval`: how well a model predicts a text.

use crate::Outcome;
use crate::interrupt::Interrupt;
use crate::options::EngineArgs;
use crate::output;
use crate::progress::{RunBar, closing_line};
use octavo::base::TokenId;
use octavo::engine::Request;
use octavo::error::{Error, Result};
use octavo::llm::{Flow, Llm, RunNews};
use serde::Serialize;
use std::ops::Range;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Perplexity of a text: exp of the mean negative log-likelihood of its tokens
    Perplexity(Args),
}

const EXPLANATION: &str = "\
Example:
  octavo eval perplexity --model M --text-file book.txt

The first token is not scored. No beginning token is added unless the model's tokenizer adds one.
A text longer than the context is scored in windows that overlap by half: each token once, with at
least half a context before it.

With --json, one line on stdout:
  {\"tokens\", \"mean_nll\", \"perplexity\", \"scored_tokens\", \"windows\"}";

#[derive(clap::Args)]
#[command(after_help = EXPLANATION)]
pub struct Args {
    #[command(flatten)]
    text: TextArgs,
    /// Write the result as a JSON line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Exactly one of these.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct TextArgs {
    /// A UTF-8 text
    #[arg(long, value_name = "FILE")]
    text_file: Option<String>,
    /// A JSON array of token ids
    #[arg(long, value_name = "FILE.json")]
    tokens_file: Option<String>,
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
struct Perplexity {
    tokens: usize,
    mean_nll: f64,
    perplexity: f64,
    scored_tokens: usize,
    windows: usize,
}

pub fn run(command: Command) -> Result<Outcome> {
    let Command::Perplexity(args) = command;
    let source = Source::read(&args.text)?;
    let llm = args.engine.open()?;
    let tokens = match source {
        Source::Text(text) => llm.engine().encode(&text)?,
        Source::Tokens(tokens) => tokens,
    };
    if tokens.len() < 2 {
        return Err(Error::config(format!("perplexity needs at least 2 tokens, but the text has {}", tokens.len())));
    }
    let interrupt = Interrupt::install(llm.engine());
    let result = interrupt.during(|| perplexity(&llm, &tokens))?;
    if args.json {
        // A reader that left has no use for the result.
        let _ = output::write_json(&result)?;
    } else {
        let Perplexity { tokens, mean_nll, perplexity, .. } = result;
        let _ = output::write(&format!("{tokens} tokens, mean NLL {mean_nll:.6} nats, perplexity {perplexity:.4}\n"))?;
    }
    eprintln!("{}", closing_line(&llm, &llm.engine().metrics()));
    Ok(Outcome::Success)
}

enum Source {
    Text(String),
    Tokens(Vec<TokenId>),
}

impl Source {
    fn read(args: &TextArgs) -> Result<Self> {
        let read = |path: &str| {
            std::fs::read_to_string(path).map_err(|error| Error::load(format!("cannot read {path}: {error}")))
        };
        match args {
            TextArgs { text_file: Some(path), .. } => Ok(Self::Text(read(path)?)),
            TextArgs { tokens_file: Some(path), .. } => serde_json::from_str(&read(path)?)
                .map(Self::Tokens)
                .map_err(|error| Error::config(format!("{path} is not a JSON array of token ids: {error}"))),
            _ => Err(Error::config("give one of --text-file and --tokens-file")),
        }
    }
}

fn perplexity(llm: &Llm, tokens: &[TokenId]) -> Result<Perplexity> {
    let windows = windows(tokens.len(), llm.engine().max_model_len());
    let mut bar = RunBar::new(windows.len());
    let mut scores: Vec<Vec<f64>> = windows.iter().map(|_| Vec::new()).collect();
    let mut failure = None;
    let requests = windows.iter().map(|window| Request::score(&tokens[window.context.clone()]));
    llm.run(requests, |index, news| {
        bar.speeds(llm);
        match news {
            RunNews::Delta { .. } => {}
            RunNews::Finished(Ok(output)) => {
                bar.finished_one();
                scores[index] = output.prompt_logprobs.iter().map(|token| token.logprob).collect();
            }
            RunNews::Finished(Err(error)) => {
                failure = Some(error);
                return Flow::Abandon;
            }
        }
        Flow::GoOn
    });
    bar.clear();
    if let Some(error) = failure {
        return Err(error);
    }
    let mut sum = 0.0;
    for (window, scores) in windows.iter().zip(&scores) {
        // Score i of a window is that of its token i + 1.
        let first = window.scored.start - window.context.start - 1;
        let scored = scores.get(first..).filter(|scored| scored.len() == window.scored.len());
        let scored = scored
            .ok_or_else(|| Error::new(octavo::ErrorKind::Cancelled, "cancelled before all tokens were scored"))?;
        sum -= scored.iter().sum::<f64>();
    }
    let scored_tokens = tokens.len() - 1;
    let mean_nll = sum / scored_tokens as f64;
    if !mean_nll.is_finite() {
        let message =
            "some logits were not finite, so there is no perplexity; see whether `octavo doctor` finds a fault";
        return Err(Error::new(octavo::ErrorKind::Bug, message));
    }
    Ok(Perplexity { tokens: tokens.len(), mean_nll, perplexity: mean_nll.exp(), scored_tokens, windows: windows.len() })
}

/// A stretch of the text that runs at once.
#[derive(Debug, PartialEq, Eq)]
struct Window {
    context: Range<usize>,
    /// The part of it whose scores count: up to its end.
    scored: Range<usize>,
}

/// Windows of at most `context` tokens over `tokens` tokens: every token but the first is scored once.
fn windows(tokens: usize, context: usize) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut scored = 1;
    while scored < tokens {
        let start = if windows.is_empty() { 0 } else { scored - (context / 2).max(1) };
        let end = (start + context).min(tokens);
        windows.push(Window { context: start..end, scored: scored..end });
        scored = end;
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_but_the_first_is_scored_once_with_half_a_context_before_it() {
        for context in 2..20 {
            for tokens in 2..100 {
                let windows = windows(tokens, context);
                let scored: Vec<usize> = windows.iter().flat_map(|window| window.scored.clone()).collect();
                assert_eq!(scored, (1..tokens).collect::<Vec<_>>(), "{tokens} tokens, context {context}");
                for (index, window) in windows.iter().enumerate() {
                    assert!(window.context.len() <= context && window.scored.end == window.context.end);
                    assert!(window.scored.start > window.context.start);
                    assert!(index == 0 || window.scored.start - window.context.start >= context / 2);
                }
            }
        }
    }

    #[test]
    fn a_text_that_fits_is_one_window() {
        assert_eq!(windows(8, 8), [Window { context: 0..8, scored: 1..8 }]);
    }
}
