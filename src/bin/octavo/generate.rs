//! `octavo generate`: continue prompts, one of them as it is written, many of them together.

use crate::Outcome;
use crate::interrupt::Interrupt;
use crate::options::EngineArgs;
use crate::progress::closing_line;
use crate::prompts;
use crate::results::{Report, Style};
use crate::sampling::SamplingArgs;
use octavo::base::TokenId;
use octavo::engine::Request;
use octavo::error::{Error, Result};
use octavo::llm::Flow;

const EXAMPLES: &str = "\
Examples:
  octavo generate --model M --prompt \"The capital of France is\" --max-tokens 20
  octavo generate --model M --prompt-tokens 1,2,3 --json
  octavo generate --model M --prompt \"The capital of France is\" --max-tokens 3 --logprobs 3
  octavo generate --model M --prompt \"A cat as JSON: \" --json-schema cat.schema.json
  octavo generate --model M --prompt \"Is water wet? \" --choice yes,no --logprobs 2
  octavo generate --model M --prompts prompts.jsonl --json --metrics figures.json > results.jsonl

A line of prompts.jsonl holds `prompt` or `prompt_token_ids`, and overrides what it names:
max_tokens, temperature, top_k, top_p, min_p, n, seed, repetition_penalty, presence_penalty,
frequency_penalty, logit_bias ({\"ID\": BIAS}), allowed_token_ids, bad_words, min_tokens, stop (a text
or a list), stop_token_ids, ignore_eos, include_stop_str_in_output, repetition_detection
({\"max_pattern_size\", \"min_pattern_size\", \"min_count\"}), logprobs and prompt_logprobs (a number
or \"all\"), detokenize, skip_special_tokens, truncate_prompt_tokens, one of json_schema, json_object,
regex, choice and grammar (Lark; or {\"lark\": TEXT}, {\"gbnf\": TEXT}), whitespace (\"compact\" or a
number), priority, deadline_ms, cache_salt:
  {\"prompt\": \"Once upon a time\", \"max_tokens\": 50, \"temperature\": 0.8, \"seed\": 1}

With --json, a line on stdout for each prompt, in their order:
  {\"index\", \"prompt_token_ids\", \"token_ids\", \"text\",
   \"finish_reason\": \"stop\" | \"length\" | \"repetition\" | \"cancelled\",
   \"num_cached_tokens\", \"ttft_ms\", \"latency_ms\"}, or {\"index\", \"error\"};
  where asked also \"logprobs\" and \"prompt_logprobs\": lists of
  {\"token\", \"text\", \"logprob\", \"rank\", \"top\": [{\"token\", \"text\", \"logprob\"}]}";

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
    let mut report = Report::new(style, count);
    interrupt.during(|| {
        llm.run(requests, |index, news| {
            let flow = report.take(&llm, index, news);
            if flow == Flow::GoOn && interrupt.asked() { Flow::Drain } else { flow }
        });
    });
    let (failed, broken) = report.end();
    let metrics = llm.engine().metrics();
    eprintln!("{}", closing_line(&llm, &metrics));
    if failed > 0 {
        eprintln!("{failed} of {count} prompts failed");
    }
    if let Some((path, file)) = metrics_file {
        serde_json::to_writer_pretty(file, &metrics)
            .map_err(|error| Error::load(format!("cannot write the figures to {path}: {error}")))?;
    }
    match (broken, failed > 0 || interrupt.asked()) {
        (Some(error), _) => Err(error),
        (None, true) => Ok(Outcome::Failure),
        (None, false) => Ok(Outcome::Success),
    }
}

fn create(path: &str) -> Result<std::fs::File> {
    std::fs::File::create(path).map_err(|error| Error::load(format!("cannot create {path}: {error}")))
}
