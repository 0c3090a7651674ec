//! Which keywords a schema may have.

use crate::error::{Error, Result};
use serde_json::{Map, Value};

/// What a value's type must be for a keyword to say anything about it. `None` for those that speak of all values.
pub(super) fn group(keyword: &str) -> Option<Group> {
    GROUPS.iter().find(|(_, keywords)| keywords.contains(&keyword)).map(|(group, _)| *group)
}

/// The values that a keyword speaks of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    Number,
    String,
    Array,
    Object,
}

const GROUPS: [(Group, &[&str]); 4] = [
    (Group::Number, &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    (Group::String, &["minLength", "maxLength", "pattern", "format"]),
    (Group::Array, &["items", "additionalItems", "prefixItems", "minItems", "maxItems", "uniqueItems"]),
    (
        Group::Object,
        &["properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"],
    ),
];

/// Keywords that put schemas or values together.
pub(super) const APPLICATORS: [&str; 6] = ["const", "enum", "allOf", "anyOf", "oneOf", "$ref"];

/// Keywords that no value can violate. A discriminator repeats what `oneOf` says.
const ANNOTATIONS: [&str; 14] = [
    "$schema",
    "$id",
    "$anchor",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "discriminator",
];

/// # Errors
/// A keyword of `schema` that is not supported, by its name.
pub(super) fn check(schema: &Map<String, Value>, place: &str) -> Result<()> {
    for keyword in schema.keys().map(String::as_str) {
        let known = keyword == "type"
            || group(keyword).is_some()
            || APPLICATORS.contains(&keyword)
            || ANNOTATIONS.contains(&keyword)
            // The draft of 2006 to 2013 called it so.
            || (keyword == "id" && place == "#");
        if !known {
            return Err(Error::config(format!("{place}: the keyword {keyword:?} is not supported{}", hint(keyword))));
        }
    }
    Ok(())
}

/// Whether `schema` says anything besides annotations.
pub(super) fn constrains(schema: &Map<String, Value>) -> bool {
    schema.keys().any(|keyword| !ANNOTATIONS.contains(&keyword.as_str()) && keyword != "id")
}

fn hint(keyword: &str) -> &'static str {
    match keyword {
        "nullable" => "; write \"type\": [..., \"null\"]",
        "if" | "then" | "else" | "dependencies" | "dependentSchemas" | "dependentRequired" => {
            "; write the cases as anyOf"
        }
        "not" => "; say what may be instead of what may not",
        "unevaluatedProperties" => "; write additionalProperties in each schema",
        "unevaluatedItems" => "; write items in each schema",
        "propertyNames" => "; write patternProperties and \"additionalProperties\": false",
        _ => "; remove it if it need not hold",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_unknown_keyword_is_named_with_its_place() {
        let schema = json!({"type": "array", "contains": {}});
        let error = check(schema.as_object().unwrap(), "#/properties/a").unwrap_err();
        assert!(error.to_string().starts_with("#/properties/a: the keyword \"contains\" is not supported"), "{error}");
    }

    #[test]
    fn no_keyword_is_in_two_lists() {
        let all: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, keywords)| keywords.iter())
            .chain(&APPLICATORS)
            .chain(&ANNOTATIONS)
            .copied()
            .collect();
        for (at, keyword) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(keyword), "{keyword}");
        }
    }
}
