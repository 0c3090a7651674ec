//! Prompt files: JSON lines with a prompt and its own parameters. Strict: a misspelt field is refused, with its line.

use crate::constraints::{schema_of, whitespace};
use crate::sampling::top;
use octavo::base::TokenId;
use octavo::engine::{Prompt, Request};
use octavo::error::{Error, Result};
use octavo::sampling::{Constraint, Grammar, RepetitionDetection, SamplingParams, TopLogprobs};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// One line. What is left out (or null) keeps the value of the command line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    prompt_token_ids: Option<Vec<TokenId>>,
    max_tokens: Option<u32>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    n: Option<u32>,
    seed: Option<u64>,
    ignore_eos: Option<bool>,
    stop: Option<Stops>,
    stop_token_ids: Option<Vec<TokenId>>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<BTreeMap<TokenId, f32>>,
    allowed_token_ids: Option<Vec<TokenId>>,
    bad_words: Option<Vec<String>>,
    min_tokens: Option<u32>,
    include_stop_str_in_output: Option<bool>,
    repetition_detection: Option<Detection>,
    logprobs: Option<Word>,
    prompt_logprobs: Option<Word>,
    detokenize: Option<bool>,
    skip_special_tokens: Option<bool>,
    truncate_prompt_tokens: Option<u32>,
    json_schema: Option<Value>,
    json_object: Option<bool>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<GrammarField>,
    whitespace: Option<Word>,
    priority: Option<i32>,
    /// From the moment the line is submitted.
    deadline_ms: Option<u64>,
    cache_salt: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
enum Stops {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Detection {
    max_pattern_size: u32,
    min_pattern_size: u32,
    min_count: u32,
}

/// A number or a name for one.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a whole number or a text")]
enum Word {
    Number(i64),
    Text(String),
}

impl Word {
    /// Read as an option of the command line is.
    fn read<T>(self, name: &str, option: impl FnOnce(&str) -> Result<T, String>) -> Result<T, String> {
        let text = match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text,
        };
        option(&text).map_err(|expected| format!("{name} is {text}, but must be {expected}"))
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a Lark grammar as a text, or an object with `lark` or `gbnf`")]
enum GrammarField {
    Text(String),
    Lark { lark: String },
    Gbnf { gbnf: String },
}

/// Reads `path`, or standard input if it is `-`. Empty lines are skipped.
///
/// # Errors
/// A file that cannot be read or holds no prompt; a line that is not as described, with its number.
pub fn read(path: &str) -> Result<PromptFile> {
    let text = match path {
        "-" => std::io::read_to_string(std::io::stdin()),
        _ => std::fs::read_to_string(path),
    };
    let text = text.map_err(|error| Error::load(format!("cannot read the prompts in {path}: {error}")))?;
    // Whatever is wrong with the lines is said before a model is loaded.
    parse(&text, path, &SamplingParams::default())?;
    Ok(PromptFile { text, name: path.to_owned() })
}

/// Lines that were read and are well formed.
pub struct PromptFile {
    text: String,
    name: String,
}

impl PromptFile {
    /// Its requests, as of now: deadlines count from here. What a line leaves out is as in `defaults`.
    pub fn requests(&self, defaults: &SamplingParams) -> Result<Vec<Request>> {
        parse(&self.text, &self.name, defaults)
    }
}

fn parse(text: &str, name: &str, defaults: &SamplingParams) -> Result<Vec<Request>> {
    let mut requests = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = |error: String| Error::config(format!("{name}, line {}: {error}", index + 1));
        let line: Line = serde_json::from_str(line).map_err(|error| at(in_column(&error)))?;
        requests.push(request(line, defaults).map_err(at)?);
    }
    match requests.is_empty() {
        true => Err(Error::config(format!("{name} holds no prompts"))),
        false => Ok(requests),
    }
}

fn request(mut line: Line, defaults: &SamplingParams) -> Result<Request, String> {
    let prompt = match (line.prompt.take(), line.prompt_token_ids.take()) {
        (Some(text), None) => Prompt::Text(text),
        (None, Some(tokens)) => Prompt::Tokens(tokens),
        (Some(_), Some(_)) => return Err("has both `prompt` and `prompt_token_ids`; leave one out".into()),
        (None, None) => return Err("has neither `prompt` nor `prompt_token_ids`".into()),
    };
    let (priority, deadline_ms, cache_salt) = (line.priority, line.deadline_ms, line.cache_salt.take());
    let params = params(line, defaults)?;
    let deadline = deadline_ms.map(|ms| {
        let now = Instant::now();
        now.checked_add(Duration::from_millis(ms)).ok_or_else(|| format!("deadline_ms is {ms}, which never comes"))
    });
    Ok(Request {
        priority: priority.unwrap_or(0),
        deadline: deadline.transpose()?,
        cache_salt,
        ..Request::new(prompt, params)
    })
}

/// Every field that is a sampling parameter; what it leaves out is as in `defaults`.
fn params(mut line: Line, defaults: &SamplingParams) -> Result<SamplingParams, String> {
    let defaults = defaults.clone();
    let unbound = line.json_object == Some(false);
    let constraint = constraint(&mut line)?;
    let detection = line.repetition_detection.map(|Detection { max_pattern_size, min_pattern_size, min_count }| {
        RepetitionDetection { max_pattern_size, min_pattern_size, min_count }
    });
    let logprobs = |name: &str, field: Option<Word>, default: Option<TopLogprobs>| match field {
        Some(word) => word.read(name, top).map(Some),
        None => Ok(default),
    };
    Ok(SamplingParams {
        temperature: line.temperature.unwrap_or(defaults.temperature),
        top_k: line.top_k.map_or(Ok(defaults.top_k), top_k)?,
        top_p: line.top_p.unwrap_or(defaults.top_p),
        min_p: line.min_p.unwrap_or(defaults.min_p),
        n: line.n.unwrap_or(defaults.n),
        seed: line.seed.or(defaults.seed),
        max_tokens: line.max_tokens.or(defaults.max_tokens),
        stop: match line.stop {
            Some(Stops::One(text)) => vec![text],
            Some(Stops::Several(texts)) => texts,
            None => defaults.stop,
        },
        stop_token_ids: line.stop_token_ids.unwrap_or(defaults.stop_token_ids),
        ignore_eos: line.ignore_eos.unwrap_or(defaults.ignore_eos),
        repetition_penalty: line.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        presence_penalty: line.presence_penalty.unwrap_or(defaults.presence_penalty),
        frequency_penalty: line.frequency_penalty.unwrap_or(defaults.frequency_penalty),
        logit_bias: line.logit_bias.unwrap_or(defaults.logit_bias),
        allowed_token_ids: line.allowed_token_ids.or(defaults.allowed_token_ids),
        bad_words: line.bad_words.unwrap_or(defaults.bad_words),
        min_tokens: line.min_tokens.unwrap_or(defaults.min_tokens),
        include_stop_str_in_output: line.include_stop_str_in_output.unwrap_or(defaults.include_stop_str_in_output),
        logprobs: logprobs("logprobs", line.logprobs, defaults.logprobs)?,
        prompt_logprobs: logprobs("prompt_logprobs", line.prompt_logprobs, defaults.prompt_logprobs)?,
        detokenize: line.detokenize.unwrap_or(defaults.detokenize),
        skip_special_tokens: line.skip_special_tokens.unwrap_or(defaults.skip_special_tokens),
        truncate_prompt_tokens: line.truncate_prompt_tokens.or(defaults.truncate_prompt_tokens),
        repetition_detection: detection.or(defaults.repetition_detection),
        constraint: constraint.or(defaults.constraint.filter(|default| !unbound || *default != Constraint::JsonObject)),
        whitespace: match line.whitespace {
            Some(word) => word.read("whitespace", whitespace)?,
            None => defaults.whitespace,
        },
    })
}

fn top_k(count: i64) -> Result<u32, String> {
    match count {
        -1 => Ok(0),
        _ => u32::try_from(count).map_err(|_| format!("top_k is {count}, but must be a count, or 0 or -1 for all")),
    }
}

/// The constraint of a line, of which there may be one.
fn constraint(line: &mut Line) -> Result<Option<Constraint>, String> {
    // As a text, a schema holds the JSON.
    let schema = match line.json_schema.take() {
        Some(Value::String(text)) => Some(schema_of(&text).map_err(|error| format!("json_schema: {error}"))?),
        schema => schema.map(Constraint::JsonSchema),
    };
    let grammar = line.grammar.take().map(|grammar| match grammar {
        GrammarField::Text(lark) | GrammarField::Lark { lark } => Grammar::Lark(lark),
        GrammarField::Gbnf { gbnf } => Grammar::Gbnf(gbnf),
    });
    let object = line.json_object.take().unwrap_or(false).then_some(Constraint::JsonObject);
    let regex = line.regex.take().map(Constraint::Regex);
    let choice = line.choice.take().map(Constraint::Choice);
    let mut given: Vec<Constraint> =
        [schema, object, regex, choice, grammar.map(Constraint::Grammar)].into_iter().flatten().collect();
    match given.as_slice() {
        [] | [_] => Ok(given.pop()),
        [first, second, ..] => Err(format!("has both `{}` and `{}`; leave one out", first.name(), second.name())),
    }
}

/// The parser sees one line at a time and calls each of them line 1: keep the column only.
fn in_column(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.split_once(" at line 1 column ") {
        Some((what, column)) => format!("{what} (column {column})"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_overrides_only_what_it_names() {
        let defaults = SamplingParams { seed: Some(7), stop: vec!["END".into()], ..SamplingParams::greedy(10) };
        let first = r#"{"prompt": "a", "temperature": 0.5, "stop": "x"}"#;
        let text = format!("{first}\n\n{{\"prompt_token_ids\": [1, 2], \"top_k\": 3}}\n");
        let requests = parse(&text, "f", &defaults).unwrap();
        assert_eq!(requests[0].prompt, Prompt::Text("a".into()));
        let stop = vec!["x".to_owned()];
        assert_eq!(requests[0].params, SamplingParams { temperature: 0.5, stop, ..defaults.clone() });
        assert_eq!(requests[1].prompt, Prompt::Tokens(vec![1, 2]));
        assert_eq!(requests[1].params, SamplingParams { top_k: 3, ..defaults });
    }

    #[test]
    fn every_parameter_has_a_field() {
        let text = r#"{"prompt": "a", "max_tokens": 9, "temperature": 0.5, "top_k": -1, "top_p": 0.9, "min_p": 0.1, "n": 2,
            "seed": 3, "repetition_penalty": 1.3, "presence_penalty": -0.5, "frequency_penalty": 0.25,
            "logit_bias": {"7": -3, "8": 2.5}, "allowed_token_ids": [1, 2], "bad_words": ["never"],
            "truncate_prompt_tokens": 5, "ignore_eos": true, "min_tokens": 4, "stop": ["END"], "stop_token_ids": [3],
            "include_stop_str_in_output": true, "logprobs": 2, "prompt_logprobs": "all", "detokenize": true,
            "repetition_detection": {"max_pattern_size": 9, "min_pattern_size": 2, "min_count": 3},
            "skip_special_tokens": false, "choice": ["yes", "no"], "whitespace": 3}"#;
        let defaults = SamplingParams::sampled(1.0).max_tokens(10).top_k(40).json_object().bad_word("ever").stop("x");
        let requests = parse(&text.replace('\n', " "), "f", &defaults).unwrap();
        let detection = RepetitionDetection { max_pattern_size: 9, min_pattern_size: 2, min_count: 3 };
        let expected = (SamplingParams::sampled(0.5).max_tokens(9).top_p(0.9).min_p(0.1).n(2).seed(3))
            .repetition_penalty(1.3)
            .presence_penalty(-0.5)
            .frequency_penalty(0.25)
            .logit_bias(7, -3.0)
            .logit_bias(8, 2.5)
            .allowed_token_ids([1, 2])
            .bad_word("never")
            .truncate_prompt_tokens(5)
            .ignore_eos()
            .min_tokens(4)
            .stop("END")
            .stop_token_id(3)
            .include_stop_str_in_output()
            .repetition_detection(detection)
            .logprobs(2)
            .prompt_logprobs(TopLogprobs::All)
            .keep_special_tokens()
            .choice(["yes", "no"])
            .whitespace(octavo::sampling::Whitespace::UpTo(3));
        assert_eq!(requests[0].params, expected);
    }

    #[test]
    fn constraints_are_read_in_all_their_forms() {
        let of = |field: &str| {
            let requests = parse(&format!("{{\"prompt\": \"a\", {field}}}"), "f", &SamplingParams::default()).unwrap();
            requests[0].params.constraint.clone()
        };
        let schema = Some(Constraint::JsonSchema(serde_json::json!({"type": "string"})));
        assert_eq!(of(r#""json_schema": {"type": "string"}"#), schema);
        assert_eq!(of(r#""json_schema": "{\"type\": \"string\"}""#), schema);
        assert_eq!(of(r#""json_object": true"#), Some(Constraint::JsonObject));
        assert_eq!(of(r#""json_object": false"#), None);
        assert_eq!(of(r#""regex": "a+""#), Some(Constraint::Regex("a+".into())));
        let lark = Some(Constraint::Grammar(Grammar::Lark("start: \"a\"".into())));
        assert_eq!(of(r#""grammar": "start: \"a\"""#), lark);
        assert_eq!(of(r#""grammar": {"lark": "start: \"a\""}"#), lark);
        let gbnf = Some(Constraint::Grammar(Grammar::Gbnf("root ::= \"a\"".into())));
        assert_eq!(of(r#""grammar": {"gbnf": "root ::= \"a\""}"#), gbnf);
    }

    #[test]
    fn refusals_name_the_line_and_the_field() {
        let cases = [
            ("{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"top_q\": 1}", ["f, line 2", "top_q"]),
            ("{\"prompt\": \"a\", \"max_tokens\": -1}", ["f, line 1", "-1"]),
            ("\n{\"top_k\": 1}", ["f, line 2", "neither"]),
            ("{\"prompt\": \"a\", \"prompt_token_ids\": [1]}", ["f, line 1", "both"]),
            (
                "{\"prompt\": \"a\", \"regex\": \"b\", \"json_object\": true}",
                ["f, line 1", "both `json_object` and `regex`"],
            ),
            (
                "{\"prompt\": \"a\", \"logprobs\": -2}",
                ["f, line 1", "logprobs is -2, but must be a whole number from 0"],
            ),
            ("{\"prompt\": \"a\", \"top_k\": -2}", ["f, line 1", "top_k is -2"]),
            ("{\"prompt\": \"a\", \"stop\": 3}", ["f, line 1", "a text or a list of texts"]),
            ("{\"prompt\": ", ["f, line 1", "column"]),
            ("\n\n", ["f holds", "no prompts"]),
        ];
        for (text, parts) in cases {
            let message = parse(text, "f", &SamplingParams::default()).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
            assert!(!message.contains("at line 1"), "{message}");
        }
        let broken = "{\"prompt\": \"a\", \"json_schema\": \"{\"}";
        let message = parse(broken, "f", &SamplingParams::default()).err().unwrap().to_string();
        assert!(message.starts_with("f, line 1: json_schema: the schema is not JSON"), "{message}");
    }
}
