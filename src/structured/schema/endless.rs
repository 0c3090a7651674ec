//! Schemas each of whose values holds another one, and so on without end. Their grammar has a beginning, so the library
//! takes them, and a model would open brackets until its context is full.

use super::super::limits::MAX_DEPTH;
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// # Errors
/// No value of the schema, as [`translate`](super::translate) gives it, has an end.
pub(super) fn check(schema: &Map<String, Value>) -> Result<()> {
    let empty = Map::new();
    let definitions = schema.get("$defs").and_then(Value::as_object).unwrap_or(&empty);
    let mut ending = HashSet::new();
    // What ends by itself, then what ends because that does, and so on; `reach` bounds how long such a chain is.
    for _ in 0..=MAX_DEPTH {
        let before = ending.len();
        for (name, definition) in definitions {
            if !ending.contains(name.as_str()) && has_end(definition, &ending) {
                ending.insert(name.as_str());
            }
        }
        if ending.len() == before {
            break;
        }
    }
    match object_has_end(schema, &ending) {
        true => Ok(()),
        false => {
            Err(Error::config("#: nothing can satisfy the schema, every value has to hold another one without end"))
        }
    }
}

/// Whether a value of `schema` may have an end, if the definitions in `ending` have.
fn has_end(schema: &Value, ending: &HashSet<&str>) -> bool {
    schema.as_object().is_none_or(|schema| object_has_end(schema, ending))
}

fn object_has_end(schema: &Map<String, Value>, ending: &HashSet<&str>) -> bool {
    let list = |keyword: &str| schema.get(keyword).and_then(Value::as_array);
    let reference = schema.get("$ref").and_then(Value::as_str).map(|name| name.trim_start_matches("#/$defs/"));
    let any = |keyword: &str| list(keyword).is_none_or(|cases| cases.iter().any(|case| has_end(case, ending)));
    reference.is_none_or(|name| ending.contains(name))
        && any("anyOf")
        && any("oneOf")
        && list("allOf").is_none_or(|all| all.iter().all(|one| has_end(one, ending)))
        && types_have_end(schema, ending)
}

fn types_have_end(schema: &Map<String, Value>, ending: &HashSet<&str>) -> bool {
    let ends = |name: &str| match name {
        "object" => required_have_end(schema, ending),
        "array" => items_have_end(schema, ending),
        _ => true,
    };
    match schema.get("type") {
        Some(Value::String(name)) => ends(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).any(ends),
        _ => true,
    }
}

fn required_have_end(schema: &Map<String, Value>, ending: &HashSet<&str>) -> bool {
    let properties = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let mut names = required.into_iter().flatten().filter_map(Value::as_str);
    names.all(|name| properties.and_then(|all| all.get(name)).is_none_or(|property| has_end(property, ending)))
}

fn items_have_end(schema: &Map<String, Value>, ending: &HashSet<&str>) -> bool {
    let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
    let prefix = schema.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let required = prefix.iter().take(usize::try_from(least).unwrap_or(usize::MAX));
    required.into_iter().all(|item| has_end(item, ending))
        && (least <= prefix.len() as u64 || schema.get("items").is_none_or(|items| has_end(items, ending)))
}

#[cfg(test)]
mod tests {
    use super::super::translate::translate;
    use super::*;
    use serde_json::json;

    #[test]
    fn what_must_hold_itself_has_no_end_and_what_may_has() {
        let node = |next: Value| json!({"type": "object", "properties": {"next": next}, "required": ["next"]});
        let itself = || json!({"$ref": "#"});
        for (schema, ends) in [
            (node(itself()), false),
            (node(json!({"anyOf": [itself(), {"type": "null"}]})), true),
            (node(json!({"type": ["array", "null"], "items": itself(), "minItems": 1})), true),
            (node(json!({"type": "array", "items": itself(), "minItems": 1})), false),
            (node(json!({"type": "array", "items": itself()})), true),
            (node(json!({"type": "array", "prefixItems": [{}, itself()], "minItems": 2})), false),
            (node(json!({"type": "array", "prefixItems": [{}, itself()], "minItems": 1})), true),
            (node(json!({"allOf": [{"type": "object"}, itself()]})), false),
            (json!({"properties": {"next": itself()}}), true),
            (json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}), false),
            (json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "null"}}}), true),
        ] {
            assert_eq!(check(&translate(&schema).unwrap()).is_ok(), ends, "{schema}");
        }
    }
}
