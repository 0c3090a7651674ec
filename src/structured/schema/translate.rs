//! The walk over a schema. What references name is translated once, side by side under `$defs`, so the walk never follows
//! a circle. In each schema the keywords of types come before those that put schemas together: llguidance reads groups of
//! neighbours, and `additionalProperties` must stand in one group with the properties that it adds to.

use super::super::limits::{MAX_PATTERN_PROPERTIES, MAX_PATTERNS};
use super::alternatives::Copies;
use super::keywords::{self, Group};
use super::references::{References, Unsaid, pointer_of};
use super::survey::Survey;
use super::{constants, numbers, reach, strings};
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};

/// The name of "any value" among the definitions.
const ANY: &str = "any";

/// The schema that llguidance gets, but for its options.
///
/// # Errors
/// What is not supported, with its place.
pub(super) fn translate(root: &Value) -> Result<Map<String, Value>> {
    let survey = Survey::of(root);
    let mut walk =
        Walk { root, survey: &survey, references: References::default(), any_is_used: false, pattern_count: 0 };
    let mut schema = walk.root(Unsaid::Bounded)?;
    let mut definitions = walk.definitions()?;
    if survey.has_intersections && reach::has_circle(&definitions) {
        // What a schema that refers to itself has in common with "any value", which does so too, would have no end.
        walk = Walk { root, survey: &survey, references: References::default(), any_is_used: false, pattern_count: 0 };
        schema = walk.root(Unsaid::Free)?;
        definitions = walk.definitions()?;
    }
    if survey.has_one_of {
        Copies::new(&definitions).resolve_all(&mut schema, &mut definitions);
    }
    if walk.any_is_used {
        definitions.insert(ANY.into(), any_value());
    }
    if !definitions.is_empty() {
        schema.insert("$defs".into(), definitions.into());
    }
    Ok(schema)
}

fn any_pointer() -> String {
    format!("#/$defs/{ANY}")
}

struct Walk<'a> {
    root: &'a Value,
    survey: &'a Survey,
    references: References,
    any_is_used: bool,
    pattern_count: usize,
}

impl Walk<'_> {
    fn root(&mut self, unsaid: Unsaid) -> Result<Map<String, Value>> {
        match self.schema(self.root, unsaid, "#")? {
            Value::Bool(false) => Err(Error::config("#: nothing can satisfy the schema false")),
            Value::Object(schema) if schema.get("$ref") != Some(&any_pointer().into()) => Ok(schema),
            // A whole output that may be anything would rather be an object.
            _ => Ok(Map::from_iter([
                ("type".to_owned(), "object".into()),
                ("additionalProperties".to_owned(), self.any(unsaid)),
            ])),
        }
    }

    /// What references named, and what references there named.
    fn definitions(&mut self) -> Result<Map<String, Value>> {
        let mut definitions = Map::new();
        while let Some((place, unsaid)) = self.references.place(definitions.len()).cloned() {
            let target = self.root.pointer(&place).expect("a reference is kept only if its place exists");
            definitions.insert(definitions.len().to_string(), self.schema(target, unsaid, &format!("#{place}"))?);
        }
        Ok(definitions)
    }

    fn schema(&mut self, schema: &Value, unsaid: Unsaid, place: &str) -> Result<Value> {
        let schema = match schema {
            Value::Bool(true) => return Ok(self.any(unsaid)),
            Value::Bool(false) => return Ok(false.into()),
            Value::Object(schema) => schema,
            _ => return Err(Error::config(format!("{place}: a schema must be an object or a boolean"))),
        };
        keywords::check(schema, place)?;
        if schema.contains_key("$id") && place != "#" && self.survey.has_references {
            return Err(Error::config(format!("{place}: $id below the root changes what $ref means; not supported")));
        }
        if !keywords::constrains(schema) {
            return Ok(self.any(unsaid));
        }
        let mut out = self.types(schema, unsaid, place)?;
        // Where several schemas must hold, one of them bounds the rest.
        let mut unsaid = if out.is_empty() { unsaid } else { Unsaid::Free };
        for keyword in keywords::APPLICATORS {
            if let Some(value) = schema.get(keyword) {
                let translated = self.applicator(keyword, value, unsaid, &format!("{place}/{keyword}"))?;
                if !matches!(keyword, "const" | "enum") {
                    unsaid = Unsaid::Free;
                }
                match (out.get_mut(keyword), translated) {
                    // What came of types may stand there already.
                    (Some(Value::Array(present)), Value::Array(more)) => present.extend(more),
                    (_, translated) => drop(out.insert(keyword.into(), translated)),
                }
            }
        }
        Ok(out.into())
    }

    /// `type` and the keywords that speak of types.
    fn types(&mut self, schema: &Map<String, Value>, unsaid: Unsaid, place: &str) -> Result<Map<String, Value>> {
        let groups: Vec<Group> = schema.keys().filter_map(|keyword| keywords::group(keyword)).collect();
        let mut types = named_types(schema, place)?;
        if types.is_empty() && groups.is_empty() {
            return Ok(Map::new());
        }
        let mut out = Map::new();
        if types.is_empty() && !self.survey.has_one_of && groups.iter().all(|group| *group == groups[0]) {
            // Without a type, the schema would allow anything that is of another type. One of `oneOf` may mean that.
            types.push(match groups[0] {
                Group::Number => "number",
                Group::String if is_numeric_format(schema) => "number",
                Group::String => "string",
                Group::Array => "array",
                Group::Object => "object",
            });
        }
        match types.as_slice() {
            [] => {}
            [only] => drop(out.insert("type".into(), (*only).into())),
            several => drop(out.insert("type".into(), json!(several))),
        }
        let may_be = |name: &str| types.is_empty() || types.contains(&name);
        // What needs a keyword twice comes last, so that the others stay together.
        let mut also = Vec::new();
        if may_be("number") || may_be("integer") {
            let meeting_steps = if self.survey.has_intersections { self.survey.steps.as_slice() } else { &[] };
            let setting = numbers::Setting { fractions: may_be("number"), meeting_steps };
            let numbers = numbers::keywords(schema, setting, place)?;
            if !setting.fractions {
                also.extend(numbers::without_minus_zero(&numbers, &types));
            }
            out.extend(numbers);
        }
        if may_be("string") {
            let (strings, second_pattern) = strings::keywords(schema, &types, place)?;
            self.pattern_count += usize::from(strings.contains_key("pattern"));
            if self.pattern_count > MAX_PATTERNS {
                return Err(Error::config(format!(
                    "the schema has more strings with a pattern or format than the limit of {MAX_PATTERNS}; let those that \
                     are alike refer to one definition"
                )));
            }
            out.extend(strings);
            also.extend(second_pattern);
        }
        if may_be("array") {
            self.array(schema, unsaid, place, &mut out)?;
        }
        if may_be("object") {
            self.object(schema, unsaid, place, &mut out)?;
        }
        if !also.is_empty() {
            out.insert("allOf".into(), also.into());
        }
        Ok(out)
    }

    fn array(
        &mut self,
        schema: &Map<String, Value>,
        unsaid: Unsaid,
        place: &str,
        out: &mut Map<String, Value>,
    ) -> Result<()> {
        strings::least(schema, "minItems", place, out)?;
        strings::most(schema, "maxItems", place, out)?;
        let at_most_one = strings::count(schema, "maxItems", place)?.is_some_and(|most| most < 2);
        if schema.get("uniqueItems") == Some(&Value::Bool(true)) && !at_most_one {
            return Err(Error::config(format!("{place}: uniqueItems is not supported; only false is")));
        }
        let (mut prefix, mut items) = (schema.get("prefixItems"), schema.get("items"));
        if let Some(Value::Array(_)) = items {
            // Up to draft 2019-09, a list of items was the prefix, and additionalItems the rest.
            if prefix.is_some() {
                return Err(Error::config(format!("{place}: a list of items beside prefixItems; name one of them")));
            }
            (prefix, items) = (items, schema.get("additionalItems"));
        } else if schema.contains_key("additionalItems") && prefix.is_some() {
            return Err(Error::config(format!(
                "{place}: additionalItems beside prefixItems has no effect; write items"
            )));
        }
        if let Some(prefix) = prefix {
            let prefix = self.list(prefix, unsaid, unsaid, &format!("{place}/prefixItems"))?;
            out.insert("prefixItems".into(), prefix);
        }
        match items {
            Some(items) => drop(out.insert("items".into(), self.schema(items, unsaid, &format!("{place}/items"))?)),
            None => drop(out.insert("items".into(), self.any(unsaid))),
        }
        Ok(())
    }

    fn object(
        &mut self,
        schema: &Map<String, Value>,
        unsaid: Unsaid,
        place: &str,
        out: &mut Map<String, Value>,
    ) -> Result<()> {
        if let Some(properties) = schema.get("properties") {
            let place = format!("{place}/properties");
            out.insert("properties".into(), self.members(properties, unsaid, &place, |name| Ok(name.to_owned()))?);
        }
        if let Some(properties) = schema.get("patternProperties") {
            let place = format!("{place}/patternProperties");
            let name = |pattern: &str| strings::pattern(&pattern.into(), &place);
            // A property of this name must fit both.
            let of_patterns = if schema.contains_key("properties") { Unsaid::Free } else { unsaid };
            out.insert("patternProperties".into(), self.members(properties, of_patterns, &place, name)?);
            let count = properties.as_object().map_or(0, Map::len);
            if count > MAX_PATTERN_PROPERTIES {
                return Err(Error::config(format!(
                    "{place} has {count} entries, more than the limit of {MAX_PATTERN_PROPERTIES}"
                )));
            }
        }
        let mut required = Vec::new();
        if let Some(names) = schema.get("required") {
            let broken = || Error::config(format!("{place}: required must be a list of strings"));
            for name in names.as_array().ok_or_else(broken)? {
                required.push(name.as_str().ok_or_else(broken)?);
            }
            out.insert("required".into(), json!(required));
        }
        strings::least(schema, "minProperties", place, out)?;
        strings::most(schema, "maxProperties", place, out)?;
        let additional = match schema.get("additionalProperties") {
            Some(additional) => self.schema(additional, unsaid, &format!("{place}/additionalProperties"))?,
            None => self.any(unsaid),
        };
        out.insert("additionalProperties".into(), additional);
        let least = strings::count(schema, "minProperties", place)?.unwrap_or(0);
        let is_open = out.get("additionalProperties") != Some(&false.into()) || out.contains_key("patternProperties");
        if is_open && least > required.len() as u64 + 1 {
            // A grammar cannot see that a key came before, and twice the same key counts once.
            return Err(Error::config(format!(
                "{place}: minProperties is {least}, more than the {} required ones and one, where names are free; name \
                 the properties and set additionalProperties to false",
                required.len()
            )));
        }
        Ok(())
    }

    fn applicator(&mut self, keyword: &str, value: &Value, unsaid: Unsaid, place: &str) -> Result<Value> {
        match keyword {
            "const" => {
                constants::check(value, place)?;
                Ok(value.clone())
            }
            "enum" => match value.as_array() {
                Some(values) if !values.is_empty() => {
                    values.iter().try_for_each(|value| constants::check(value, place))?;
                    Ok(value.clone())
                }
                _ => Err(Error::config(format!("{place} must be a list with at least one value"))),
            },
            "$ref" => {
                let pointer = pointer_of(self.root, value, place)?;
                Ok(format!("#/$defs/{}", self.references.index(pointer, unsaid)).into())
            }
            "allOf" => self.list(value, unsaid, Unsaid::Free, place),
            _ => self.list(value, unsaid, unsaid, place),
        }
    }

    fn list(&mut self, schemas: &Value, first: Unsaid, others: Unsaid, place: &str) -> Result<Value> {
        match schemas.as_array() {
            Some(schemas) if !schemas.is_empty() => {
                let each = schemas.iter().enumerate().map(|(at, schema)| {
                    self.schema(schema, if at == 0 { first } else { others }, &format!("{place}/{at}"))
                });
                each.collect()
            }
            _ => Err(Error::config(format!("{place} must be a list with at least one schema"))),
        }
    }

    fn members(
        &mut self,
        members: &Value,
        unsaid: Unsaid,
        place: &str,
        name: impl Fn(&str) -> Result<String>,
    ) -> Result<Value> {
        let Value::Object(members) = members else {
            return Err(Error::config(format!("{place} must be an object")));
        };
        let mut out = Map::new();
        for (key, schema) in members {
            out.insert(name(key)?, self.schema(schema, unsaid, &format!("{place}/{}", escape_pointer(key)))?);
        }
        Ok(out.into())
    }

    fn any(&mut self, unsaid: Unsaid) -> Value {
        match unsaid {
            Unsaid::Free => true.into(),
            Unsaid::Bounded => {
                self.any_is_used = true;
                json!({"$ref": any_pointer()})
            }
        }
    }
}

fn any_value() -> Value {
    let any = json!({"$ref": any_pointer()});
    json!({"anyOf": [
        {"type": ["null", "boolean", "string"]},
        {"type": "number", "minimum": -numbers::LARGEST, "maximum": numbers::LARGEST, "multipleOf": 1e-8},
        {"type": "array", "items": any},
        {"type": "object", "additionalProperties": any},
    ]})
}

fn named_types<'a>(schema: &'a Map<String, Value>, place: &str) -> Result<Vec<&'a str>> {
    let types = match schema.get("type") {
        None => return Ok(Vec::new()),
        Some(Value::String(name)) => vec![name.as_str()],
        Some(Value::Array(names)) if !names.is_empty() => names.iter().filter_map(Value::as_str).collect(),
        Some(other) => return Err(Error::config(format!("{place}: type is {other}, but must name types"))),
    };
    const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
    match types.iter().find(|name| !TYPES.contains(name)) {
        Some(name) => Err(Error::config(format!("{place}: the type {name:?} is none of {}", TYPES.join(", ")))),
        None => Ok(types),
    }
}

fn is_numeric_format(schema: &Map<String, Value>) -> bool {
    schema.get("format").and_then(Value::as_str).is_some_and(numbers::is_format)
}

fn escape_pointer(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
