//! Alternatives of `oneOf` that are references.

use serde_json::{Map, Value, json};

/// Schemas that may be copied for `oneOf`.
const MOST_COPIES: usize = 1_000;

/// References to references, and alternatives of alternatives, that are followed.
const MOST_COPIES_DEEP: usize = 8;

/// Puts in the place of each alternative of a `oneOf` that is a reference what it refers to: the library must see that
/// alternatives exclude each other, and it does not look through references.
pub(super) struct Copies {
    originals: Map<String, Value>,
    left: usize,
}

impl Copies {
    pub(super) fn new(definitions: &Map<String, Value>) -> Self {
        Self { originals: definitions.clone(), left: MOST_COPIES }
    }

    /// Puts them into the whole schema.
    pub(super) fn resolve_all(&mut self, schema: &mut Map<String, Value>, definitions: &mut Map<String, Value>) {
        definitions.values_mut().for_each(|definition| self.resolve(definition, 0));
        schema.values_mut().for_each(|value| self.resolve(value, 0));
        self.resolve_one_of(schema, 0);
    }

    fn resolve(&mut self, value: &mut Value, depth: usize) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.resolve(item, depth)),
            Value::Object(entries) => {
                entries.values_mut().for_each(|entry| self.resolve(entry, depth));
                self.resolve_one_of(entries, depth);
            }
            _ => {}
        }
    }

    fn resolve_one_of(&mut self, schema: &mut Map<String, Value>, depth: usize) {
        let Some(Value::Array(alternatives)) = schema.get_mut("oneOf") else {
            return;
        };
        for alternative in alternatives.iter_mut().filter(|_| depth < MOST_COPIES_DEEP) {
            let name = match alternative.as_object() {
                Some(entries) if entries.len() == 1 => entries.get("$ref").and_then(Value::as_str),
                _ => None,
            };
            let name = name.map(|name| name.trim_start_matches("#/$defs/"));
            if let Some(copy) = name.and_then(|name| self.originals.get(name)).filter(|_| self.left > 0) {
                *alternative = copy.clone();
                self.left -= 1;
                // It may be a reference itself, or have alternatives in turn.
                let mut wrapped = json!({"oneOf": [alternative.take()]});
                self.resolve(&mut wrapped, depth + 1);
                *alternative = wrapped["oneOf"][0].take();
            }
        }
    }
}
