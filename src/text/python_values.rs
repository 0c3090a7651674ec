//! How Python writes values: `json.dumps` and `str`. Chat templates are made for Python's Jinja, and models were trained
//! on what it prints.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// Arguments of `json.dumps` that templates can set.
pub(super) struct JsonStyle {
    /// Text of one level of indentation; `None` writes one line.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) ascii_only: bool,
    pub(super) sort_keys: bool,
}

impl JsonStyle {
    /// `json.dumps(value)`.
    pub(super) fn write(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write_value(value, 0, &mut out)?;
        Ok(out)
    }

    fn write_value(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_items(['[', ']'], items.len(), depth, out, |place, out| {
                    self.write_value(&items[place], depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    entries.push((json_key(&key)?, value.get_item(&key)?));
                }
                if self.sort_keys {
                    entries.sort_by(|left, right| left.0.cmp(&right.0));
                }
                self.write_items(['{', '}'], entries.len(), depth, out, |place, out| {
                    self.write_text(&entries[place].0, out);
                    out.push_str(&self.key_separator);
                    self.write_value(&entries[place].1, depth + 1, out)
                })?;
            }
            kind => return Err(not_json(kind)),
        }
        Ok(())
    }

    fn write_items(
        &self,
        brackets: [char; 2],
        count: usize,
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(brackets[0]);
        for place in 0..count {
            if place > 0 {
                out.push_str(&self.item_separator);
            }
            new_line(depth + 1, out);
            write(place, out)?;
        }
        if count > 0 {
            new_line(depth, out);
        }
        out.push(brackets[1]);
        Ok(())
    }

    fn write_text(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                character if character < ' ' || (self.ascii_only && character > '~') => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        push(out, format_args!("\\u{unit:04x}"));
                    }
                }
                character => out.push(character),
            }
        }
        out.push('"');
    }
}

/// `str(value)`, what `{{ value }}` prints; a missing value prints nothing.
pub(super) fn to_str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => {
            let mut out = String::new();
            write_repr(value, &mut out)?;
            Ok(out)
        }
    }
}

fn write_repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => write_text_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            out.push('[');
            for (place, item) in value.try_iter()?.enumerate() {
                out.push_str(if place > 0 { ", " } else { "" });
                write_repr(&item, out)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (place, key) in value.try_iter()?.enumerate() {
                out.push_str(if place > 0 { ", " } else { "" });
                write_repr(&key, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        _ => push(out, format_args!("{value}")),
    }
    Ok(())
}

fn write_text_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            character if character == quote => out.extend(['\\', quote]),
            character if character.is_control() => push(out, format_args!("\\x{:02x}", character as u32)),
            character => out.push(character),
        }
    }
    out.push(quote);
}

/// Integers as they are, floats with the fewest digits that read back, exponents as `e+16` and `e-05`.
fn number(value: &Value) -> String {
    let float = match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => float,
        _ => return value.to_string(),
    };
    if !float.is_finite() {
        return if float.is_nan() {
            "NaN"
        } else if float > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .into();
    }
    // Rust's Debug changes to exponents at the same magnitudes as Python's repr.
    let text = format!("{float:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
            format!("{digits}e{sign}{exponent:0>2}").replace(".0e", "e")
        }
    }
}

fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(key.is_true().to_string()),
        ValueKind::Number => Ok(number(key)),
        kind => Err(not_json(kind)),
    }
}

fn not_json(kind: ValueKind) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value of type {kind} cannot be written as JSON"))
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn floats_are_written_as_python_does() {
        // From CPython: [repr(x) for x in ...].
        for (float, expected) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
        ] {
            assert_eq!(number(&Value::from(float)), expected);
        }
        assert_eq!(number(&Value::from(u64::MAX)), "18446744073709551615");
    }

    #[test]
    fn values_print_as_python_str() {
        let value = json!({"b": [1, null, true, "it's"], "a": {"x": "say \"it's\"\n", "y": 0.5}});
        // From CPython: str(value).
        let expected = r#"{'b': [1, None, True, "it's"], 'a': {'x': 'say "it\'s"\n', 'y': 0.5}}"#;
        assert_eq!(to_str(&Value::from_serialize(&value)).unwrap(), expected);
        assert_eq!(to_str(&Value::UNDEFINED).unwrap(), "");
        assert_eq!(to_str(&Value::from(())).unwrap(), "None");
    }
}
