//! JSON Schema, made ready for llguidance. The library reads most of a schema, but some keywords it passes over in
//! silence, some it reads a little differently from the standard, and numbers may go on for ever. So each schema is
//! rewritten first: every keyword is either one that we know to be enforced, or an annotation, or refused by name.
//!
//! - [`translate`](mod@translate) walks the schema, `keywords` says what is known.
//! - `numbers`, `strings` and `formats` bring bounds, patterns and formats into a form that the library enforces exactly;
//!   `constants` looks at values, `survey` at the whole.
//! - `references` finds what `$ref` names, `reach` bounds how deep references lead, `alternatives` looks behind those of
//!   `oneOf`, and `endless` finds those that lead nowhere.
//!
//! Every output of the rewritten schema fits the original; not the other way round: numbers are written without
//! exponents, properties come in the order of the schema, a schema that allows anything asks for an object, and one that
//! only speaks of strings allows only strings.

mod alternatives;
mod constants;
mod endless;
mod formats;
mod keywords;
mod numbers;
mod reach;
mod references;
mod strings;
mod survey;
mod translate;

use super::limits;
use crate::error::{Error, Result};
use crate::sampling::Whitespace;
use serde_json::{Map, Value, json};

/// The schema of a constraint: text is parsed, everything else is one already.
///
/// # Errors
/// Text that is no JSON or beyond the limits.
pub(super) fn parse(schema: &Value) -> Result<Value> {
    let Value::String(text) = schema else {
        limits::check_value(schema)?;
        return Ok(schema.clone());
    };
    limits::check_source("the schema", text.len())?;
    let schema =
        serde_json::from_str(text).map_err(|error| Error::config(format!("the schema is no JSON: {error}")))?;
    limits::check_value(&schema)?;
    Ok(schema)
}

/// What llguidance compiles in the place of `schema`, which [`parse`] has let through. Recursive, to a depth that
/// `limits` bounds.
///
/// # Errors
/// Keywords that are not supported, values that they cannot have, references that lead nowhere, limits. Each names the
/// place as a JSON pointer.
pub(super) fn prepare(schema: &Value, whitespace: Whitespace) -> Result<Value> {
    let mut prepared = translate::translate(schema)?;
    reach::check(&prepared)?;
    endless::check(&prepared)?;
    prepared.insert("x-guidance".into(), options(whitespace));
    Ok(Value::Object(prepared))
}

/// Any JSON object, with the same bounds inside.
pub(super) fn any_object() -> Value {
    json!({"type": "object"})
}

fn options(whitespace: Whitespace) -> Value {
    let mut options = Map::new();
    options.insert("item_separator".into(), ",".into());
    options.insert("key_separator".into(), ":".into());
    // Without \u: a key that the schema does not name could otherwise spell one that it does name.
    options.insert("json_allowed_escapes".into(), "nrbtf\\\"".into());
    match whitespace {
        Whitespace::Compact | Whitespace::UpTo(0) => options.insert("whitespace_flexible".into(), false.into()),
        Whitespace::UpTo(most) => {
            let most = most.min(MOST_WHITESPACE);
            options.insert("whitespace_pattern".into(), format!("[ \\n\\r\\t]{{1,{most}}}").into())
        }
    };
    Value::Object(options)
}

/// Enough for any indentation, and it bounds the states of the lexer.
const MOST_WHITESPACE: u32 = 1_000;
