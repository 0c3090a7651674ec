//! Values that stand in a schema as they are to come: `const` and `enum`.

use super::numbers::LARGEST;
use crate::error::{Error, Result};
use serde_json::Value;

/// Refuses values that the library cannot write as they are: integers that it would round, and control characters that
/// have no short escape. Recursion is bounded by the nesting of the schema.
pub(super) fn check(value: &Value, place: &str) -> Result<()> {
    let check_text = |text: &str| match text
        .chars()
        .find(|character| character.is_ascii_control() && !"\n\r\t\u{8}\u{c}".contains(*character))
    {
        Some(control) => Err(Error::config(format!("{place}: U+{:04X} in a text is not supported", control as u32))),
        None => Ok(()),
    };
    match value {
        Value::Number(number) if number.as_f64().is_none_or(|number| number.abs() > LARGEST) => {
            let largest = LARGEST;
            Err(Error::config(format!(
                "{place}: {number} is beyond {largest}, where not all integers can be told apart"
            )))
        }
        Value::String(text) => check_text(text),
        Value::Array(items) => items.iter().try_for_each(|item| check(item, place)),
        Value::Object(entries) => entries.iter().try_for_each(|(key, value)| {
            check_text(key)?;
            check(value, place)
        }),
        _ => Ok(()),
    }
}
