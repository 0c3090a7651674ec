//! The Jinja environment of chat templates, set up as transformers does it (`chat_template_utils.py`); values print as in
//! Python (`python_values`).

use super::python_values::{JsonStyle, to_str};
use super::strftime::strftime;
use crate::error::Error;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind};
use std::time::SystemTime;

/// An environment without templates. `clock` is what `strftime_now` prints (in UTC).
pub(super) fn environment(clock: fn() -> SystemTime) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_keep_trailing_newline(false);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, _, value| Ok(out.write_str(&to_str(value)?)?));
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", move |format: &str| strftime(clock(), format));
    environment
}

/// What a template says through `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// An error of rendering, the template's own words where it refuses.
pub(super) fn explain(error: &minijinja::Error) -> Error {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(at) = cause {
        if let Some(Raised(message)) = at.downcast_ref() {
            return Error::config(format!("the chat template refuses these messages: {message}"));
        }
        cause = at.source();
    }
    Error::config(format!("the chat template cannot render these messages: {error}; check roles and contents"))
}

/// `tojson` with the arguments of transformers: `ensure_ascii, indent, separators, sort_keys`.
fn to_json(value: &Value, ascii_only: Option<Value>, arguments: Kwargs) -> Result<Value, minijinja::Error> {
    let ascii_only = match ascii_only {
        Some(given) => given.is_true(),
        None => arguments.get::<Option<Value>>("ensure_ascii")?.is_some_and(|given| given.is_true()),
    };
    let indent = match arguments.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(MOST_INDENT)),
        }),
    };
    let (item_separator, key_separator) = match arguments.get::<Option<Vec<String>>>("separators")? {
        Some(given) => <[String; 2]>::try_from(given)
            .map_err(|_| minijinja::Error::new(ErrorKind::InvalidOperation, "separators of tojson must be two texts"))?
            .into(),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let sort_keys = arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    arguments.assert_all_used()?;
    let style = JsonStyle { indent, item_separator, key_separator, ascii_only, sort_keys };
    style.write(value).map(Value::from)
}

/// Keeps a template from asking for gigabytes of spaces.
const MOST_INDENT: usize = 64;

/// `{% generation %}` marks the assistant's words for training and prints nothing by itself: made an `if` that is true.
pub(super) fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        out.push_str(before);
        let Some(close) = tag.find("%}") else {
            out.push_str(tag);
            return out;
        };
        let inside = &tag[2..close];
        let word = inside.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let replacement = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        let Some(replacement) = replacement else {
            // Only past the opening: the tag may be a comment's or a text's, and a true tag may begin within.
            out.push_str("{%");
            rest = &tag[2..];
            continue;
        };
        out.push_str("{%");
        out.push_str(&inside.replacen(word, replacement, 1));
        out.push_str("%}");
        rest = &tag[close + 2..];
    }
    out.push_str(rest);
    out
}
