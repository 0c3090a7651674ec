//! Strings: their length, pattern and format.

use super::super::regex;
use super::{formats, numbers};
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};

/// Lengths and counts above this are not asked of a model, and no output is so long.
pub(super) const MOST: u64 = 1_000_000;

/// The keywords of strings in `schema`, with formats as patterns; and a schema that must hold too, if there is a format
/// beside a pattern, since one keyword cannot have both. `types` is the schema's, if it names any.
///
/// # Errors
/// Values that the keywords cannot have, formats that are not known, expressions that are not supported.
pub(super) fn keywords(
    schema: &Map<String, Value>,
    types: &[&str],
    place: &str,
) -> Result<(Map<String, Value>, Option<Value>)> {
    let mut keywords = Map::new();
    least(schema, "minLength", place, &mut keywords)?;
    most(schema, "maxLength", place, &mut keywords)?;
    let pattern = schema.get("pattern").map(|pattern| self::pattern(pattern, place)).transpose()?;
    let format = schema.get("format").map(|format| self::format(format, place)).transpose()?.flatten();
    let beside_pattern = format.as_ref().filter(|_| pattern.is_some()).map(|format| match types {
        [] => json!({"pattern": format}),
        _ => json!({"type": types, "pattern": format}),
    });
    keywords.extend(pattern.or(format).map(|pattern| ("pattern".to_owned(), pattern.into())));
    Ok((keywords, beside_pattern))
}

/// Copies a lower bound of a length or count.
///
/// # Errors
/// No whole number, or one that no output reaches.
pub(super) fn least(
    schema: &Map<String, Value>,
    keyword: &str,
    place: &str,
    to: &mut Map<String, Value>,
) -> Result<()> {
    match count(schema, keyword, place)? {
        Some(count) if count > MOST => {
            Err(Error::config(format!("{place}: {keyword} is {count}, more than the limit of {MOST}")))
        }
        Some(count) if count > 0 => {
            to.insert(keyword.into(), count.into());
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Copies an upper bound of a length or count, unless no output reaches it.
///
/// # Errors
/// No whole number.
pub(super) fn most(schema: &Map<String, Value>, keyword: &str, place: &str, to: &mut Map<String, Value>) -> Result<()> {
    if let Some(count) = count(schema, keyword, place)?
        && count < u64::from(u32::MAX)
    {
        to.insert(keyword.into(), count.into());
    }
    Ok(())
}

/// A whole number that is not negative; the standard lets 3.0 be one.
///
/// # Errors
/// Anything else.
pub(super) fn count(schema: &Map<String, Value>, keyword: &str, place: &str) -> Result<Option<u64>> {
    let Some(value) = schema.get(keyword) else {
        return Ok(None);
    };
    let whole = value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..1.9e19).contains(number));
    match value.as_u64().or(whole.map(|number| number as u64)) {
        Some(count) => Ok(Some(count)),
        None => Err(Error::config(format!("{place}: {keyword} is {value}, but must be a whole number from 0 on"))),
    }
}

/// A pattern in the library's notation.
///
/// # Errors
/// No string, or an expression that is broken or not supported.
pub(super) fn pattern(pattern: &Value, place: &str) -> Result<String> {
    let Value::String(pattern) = pattern else {
        return Err(Error::config(format!("{place}: pattern is {pattern}, but must be a string")));
    };
    regex::from_ecma_script(pattern).map_err(|error| error.context(format!("{place}: pattern {pattern:?}")))
}

/// The pattern of a format; `None` for formats of numbers.
fn format(format: &Value, place: &str) -> Result<Option<String>> {
    let Value::String(name) = format else {
        return Err(Error::config(format!("{place}: format is {format}, but must be a string")));
    };
    if numbers::is_format(name) {
        return Ok(None);
    }
    match formats::pattern(name) {
        Some(pattern) => Ok(Some(format!("^(?:{pattern})$"))),
        None => {
            let known = formats::NAMES.join(", ");
            Err(Error::config(format!("{place}: the format {name:?} is not supported; supported are {known}")))
        }
    }
}
