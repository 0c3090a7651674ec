//! What must be known of a whole schema before any part of it is translated.

use super::keywords;
use serde_json::{Map, Value};

/// What the whole schema has, wherever it stands.
pub(super) struct Survey {
    pub(super) has_references: bool,
    pub(super) has_one_of: bool,
    /// Whether the library may have to find what two schemas have in common.
    pub(super) has_intersections: bool,
    /// Different values of `multipleOf`.
    pub(super) steps: Vec<f64>,
}

impl Survey {
    pub(super) fn of(root: &Value) -> Self {
        let mut survey = Self { has_references: false, has_one_of: false, has_intersections: false, steps: Vec::new() };
        let mut open = vec![root];
        while let Some(value) = open.pop() {
            match value {
                Value::Object(entries) => {
                    survey.add(entries);
                    open.extend(entries.values());
                }
                Value::Array(items) => open.extend(items),
                _ => {}
            }
        }
        survey
    }

    /// Every object counts, even if it is no schema: being too careful costs little.
    fn add(&mut self, entries: &Map<String, Value>) {
        let has = |keyword: &str| entries.contains_key(keyword);
        let is_alone = entries.keys().filter(|key| *key == "type" || keywords::group(key).is_some()).count() == 0;
        let combined = keywords::APPLICATORS.iter().filter(|keyword| has(keyword)).count();
        self.has_references |= has("$ref");
        self.has_one_of |= has("oneOf");
        let combines = has("$ref") || has("anyOf") || has("oneOf");
        self.has_intersections |= has("allOf")
            || (combines && (combined > 1 || !is_alone))
            || (has("patternProperties") && has("properties"));
        if let Some(step) = entries.get("multipleOf").and_then(Value::as_f64)
            && !self.steps.contains(&step)
        {
            self.steps.push(step);
        }
    }
}
