//! Grammars in llguidance's Lark, checked before the library reads them: what it would recurse over without end, what it
//! would take for granted (schemas in a grammar are held to the same rules as others), and what nobody here would do.

use super::limits::{MAX_NESTING, MAX_RULES, check_source, check_value};
use super::schema;
use crate::error::{Error, Result};
use crate::sampling::Whitespace;
use serde_json::Value;

/// The grammar with its schemas rewritten as [`schema::prepare`] does.
///
/// # Errors
/// Limits, schemas that are not supported, and `temperature`, which a grammar cannot set here. Mistakes of notation are
/// left to the library, which shows the place.
pub(super) fn prepare(source: &str, whitespace: Whitespace) -> Result<String> {
    check_source("the grammar", source.len())?;
    let mut out = String::with_capacity(source.len());
    let (mut depth, mut rules) = (0usize, 0usize);
    let mut at = 0;
    while at < source.len() {
        let rest = &source[at..];
        let length = piece_length(rest);
        let piece = &rest[..length];
        at += length;
        out.push_str(piece);
        match piece {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            ":" => rules += 1,
            "temperature" => {
                return Err(Error::config("a grammar cannot set temperature; it is a parameter of the request"));
            }
            "%json" | "%llguidance" | "%regex" => {
                let (value, length) = json(piece, &source[at..])?;
                at += length;
                let value = if piece == "%json" { prepare_schema(&value, whitespace)? } else { value };
                out.push_str(&value.to_string());
            }
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(Error::config(format!("the grammar nests deeper than the limit of {MAX_NESTING} levels")));
        }
        if rules > MAX_RULES {
            return Err(Error::config(format!("the grammar has more rules than the limit of {MAX_RULES}")));
        }
    }
    Ok(out)
}

/// The length of the comment, text, expression, word or character at the beginning of `rest`.
fn piece_length(rest: &str) -> usize {
    let first = rest.chars().next().expect("called with something left");
    let until = |end: &dyn Fn(char) -> bool| rest.find(end).unwrap_or(rest.len());
    match first {
        '#' => until(&|character| character == '\n'),
        '/' if rest.starts_with("//") => until(&|character| character == '\n'),
        '"' | '/' => quoted_length(rest, first),
        _ if is_word(first) || first == '%' => {
            let word = rest[first.len_utf8()..].find(|character| !is_word(character));
            word.map_or(rest.len(), |length| length + first.len_utf8())
        }
        _ => first.len_utf8(),
    }
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// The length of what stands between two `quote`s, with them.
fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in rest.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The JSON value that `rest` begins with, and its length.
fn json(keyword: &str, rest: &str) -> Result<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => Ok((value, values.byte_offset())),
        Some(Err(error)) => Err(Error::config(format!("{keyword} is not followed by JSON: {error}"))),
        None => Err(Error::config(format!("{keyword} is not followed by JSON"))),
    }
}

fn prepare_schema(schema: &Value, whitespace: Whitespace) -> Result<Value> {
    check_value(schema)?;
    schema::prepare(schema, whitespace).map_err(|error| error.context("%json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(source: &str) -> Result<String> {
        prepare(source, Whitespace::Compact)
    }

    #[test]
    fn what_is_no_schema_stays_as_it_is() {
        let source =
            "start: a /[\"/]\\//i \"(((%json \\\" {\" // %json {\n# ((( %json [\na: <|im_end|> | B{1,3}\nB: /x/";
        assert_eq!(prepared(source).unwrap(), source);
    }

    #[test]
    fn schemas_are_held_to_the_rules_of_schemas() {
        let grammar = prepared("start: \"<\" %json {\"type\": \"integer\"} \">\"").unwrap();
        assert!(grammar.contains("\"maximum\":9007199254740991.0") && grammar.ends_with(" \">\""), "{grammar}");
        let error = prepared("start: %json { \"contains\": {} }").unwrap_err().to_string();
        assert!(error.starts_with("%json: #: the keyword \"contains\""), "{error}");
        let error = prepared("start: %json {").unwrap_err().to_string();
        assert!(error.starts_with("%json is not followed by JSON"), "{error}");
    }

    #[test]
    fn limits_are_named() {
        for (source, part) in [
            (format!("start: {}", "(".repeat(MAX_NESTING + 1)), "nests deeper"),
            ("a: b\n".repeat(MAX_RULES + 1), "more rules"),
            ("x".repeat(1 << 20), "1048576 bytes"),
            ("start: A\nA[temperature=0.5]: /a/".to_owned(), "cannot set temperature"),
        ] {
            let error = prepared(&source).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
