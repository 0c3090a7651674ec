//! Prompt files: JSON lines with a prompt and its own parameters. Strict: a misspelt field is refused, with its line.

use octavo::base::TokenId;
use octavo::engine::{Prompt, Request};
use octavo::error::{Error, Result};
use octavo::sampling::SamplingParams;
use serde::Deserialize;
use std::time::{Duration, Instant};

/// One line. What is left out (or null) keeps the value of the command line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    prompt_token_ids: Option<Vec<TokenId>>,
    max_tokens: Option<u32>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    n: Option<u32>,
    seed: Option<u64>,
    ignore_eos: Option<bool>,
    stop: Option<Stops>,
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

fn request(line: Line, defaults: &SamplingParams) -> Result<Request, String> {
    let prompt = match (line.prompt, line.prompt_token_ids) {
        (Some(text), None) => Prompt::Text(text),
        (None, Some(tokens)) => Prompt::Tokens(tokens),
        (Some(_), Some(_)) => return Err("has both `prompt` and `prompt_token_ids`; leave one out".into()),
        (None, None) => return Err("has neither `prompt` nor `prompt_token_ids`".into()),
    };
    let params = SamplingParams {
        temperature: line.temperature.unwrap_or(defaults.temperature),
        top_k: line.top_k.unwrap_or(defaults.top_k),
        top_p: line.top_p.unwrap_or(defaults.top_p),
        min_p: line.min_p.unwrap_or(defaults.min_p),
        n: line.n.unwrap_or(defaults.n),
        seed: line.seed.or(defaults.seed),
        max_tokens: line.max_tokens.or(defaults.max_tokens),
        stop: match line.stop {
            Some(Stops::One(text)) => vec![text],
            Some(Stops::Several(texts)) => texts,
            None => defaults.stop.clone(),
        },
        stop_token_ids: defaults.stop_token_ids.clone(),
        ignore_eos: line.ignore_eos.unwrap_or(defaults.ignore_eos),
        ..defaults.clone()
    };
    let deadline = line.deadline_ms.map(|ms| {
        let now = Instant::now();
        now.checked_add(Duration::from_millis(ms)).ok_or_else(|| format!("deadline_ms is {ms}, which never comes"))
    });
    Ok(Request {
        priority: line.priority.unwrap_or(0),
        deadline: deadline.transpose()?,
        cache_salt: line.cache_salt,
        ..Request::new(prompt, params)
    })
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
    fn refusals_name_the_line_and_the_field() {
        let cases = [
            ("{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"top_q\": 1}", ["f, line 2", "top_q"]),
            ("{\"prompt\": \"a\", \"max_tokens\": -1}", ["f, line 1", "-1"]),
            ("\n{\"top_k\": 1}", ["f, line 2", "neither"]),
            ("{\"prompt\": \"a\", \"prompt_token_ids\": [1]}", ["f, line 1", "both"]),
            ("{\"prompt\": \"a\", \"stop\": 3}", ["f, line 1", "a text or a list of texts"]),
            ("{\"prompt\": ", ["f, line 1", "column"]),
            ("\n\n", ["f holds", "no prompts"]),
        ];
        for (text, parts) in cases {
            let message = parse(text, "f", &SamplingParams::default()).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
            assert!(!message.contains("at line 1"), "{message}");
        }
    }
}
