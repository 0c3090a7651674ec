//! How deep the library's own walk over a schema goes. It follows each reference where it first meets it, so a long
//! chain of definitions is as deep as one schema inside another, and its stack must hold all of it.

use super::super::limits::MAX_DEPTH;
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// # Errors
/// Schemas that lie more than [`MAX_DEPTH`] deep within each other, references followed.
pub(super) fn check(schema: &Map<String, Value>) -> Result<()> {
    let empty = Map::new();
    let definitions = schema.get("$defs").and_then(Value::as_object).unwrap_or(&empty);
    let mut walk = Walk { definitions, seen: HashSet::new() };
    schema
        .iter()
        .filter(|(keyword, _)| *keyword != "$defs")
        .try_for_each(|(keyword, value)| walk.entry(keyword, value, 1))
}

/// Whether a definition leads back to itself. Not told of chains that [`check`] refuses.
pub(super) fn has_circle(definitions: &Map<String, Value>) -> bool {
    // Kahn's order: take away what names nothing that is left, until all is gone or nothing can go.
    let mut left: Vec<(&str, HashSet<&str>)> =
        definitions.iter().map(|(name, definition)| (name.as_str(), named(definition))).collect();
    for _ in 0..=MAX_DEPTH {
        let names: HashSet<&str> = left.iter().map(|(name, _)| *name).collect();
        let before = left.len();
        left.retain(|(_, named)| named.iter().any(|name| names.contains(name)));
        if left.len() == before {
            return before > 0;
        }
    }
    false
}

/// The definitions that `value` names.
fn named(value: &Value) -> HashSet<&str> {
    let (mut names, mut open) = (HashSet::new(), vec![value]);
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(entries) => {
                names
                    .extend(entries.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix("#/$defs/")));
                open.extend(entries.values());
            }
            _ => {}
        }
    }
    names
}

struct Walk<'a> {
    definitions: &'a Map<String, Value>,
    seen: HashSet<&'a str>,
}

impl<'a> Walk<'a> {
    fn value(&mut self, value: &'a Value, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::config(format!(
                "the schema goes deeper than the limit of {MAX_DEPTH} levels, references followed"
            )));
        }
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.value(item, depth + 1)),
            Value::Object(entries) => {
                entries.iter().try_for_each(|(keyword, value)| self.entry(keyword, value, depth + 1))
            }
            _ => Ok(()),
        }
    }

    fn entry(&mut self, keyword: &str, value: &'a Value, depth: usize) -> Result<()> {
        let name = value.as_str().filter(|_| keyword == "$ref").and_then(|name| name.strip_prefix("#/$defs/"));
        match name.and_then(|name| self.definitions.get_key_value(name)) {
            Some((name, definition)) if self.seen.insert(name) => self.value(definition, depth + 1),
            Some(_) => Ok(()),
            None => self.value(value, depth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Definitions of which each is an object with the next.
    fn chain(length: usize) -> Map<String, Value> {
        let mut definitions = Map::new();
        for at in 0..length {
            let next = json!({"type": "object", "properties": {"next": {"$ref": format!("#/$defs/{}", at + 1)}}});
            definitions.insert(at.to_string(), next);
        }
        definitions.insert(length.to_string(), json!({"type": "null"}));
        let root = json!({"$ref": "#/$defs/0", "$defs": definitions});
        root.as_object().unwrap().clone()
    }

    #[test]
    fn chains_of_references_count_and_circles_do_not() {
        assert!(check(&chain(MAX_DEPTH / 5)).is_ok());
        let error = check(&chain(MAX_DEPTH)).unwrap_err().to_string();
        assert!(error.contains("deeper than the limit"), "{error}");
        assert!(!has_circle(chain(20)["$defs"].as_object().unwrap()));
        let circle = json!({"items": {"$ref": "#/$defs/0"}, "$defs": {"0": {"items": {"$ref": "#/$defs/0"}}}});
        assert!(check(circle.as_object().unwrap()).is_ok());
        assert!(has_circle(circle["$defs"].as_object().unwrap()));
    }
}
