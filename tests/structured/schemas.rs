//! JSON Schemas: every output parses and validates, and is no longer than its schema allows.

use crate::sampler::{Vocabulary, sentencepiece, smollm2, tiny};
use octavo::sampling::{Constraint, Whitespace};
use serde_json::{Value, json};

const SEEDS: u64 = 5;

/// Most tokens of an output. The sampler closes what it can from the hundredth on.
const MOST_TOKENS: usize = 1_500;

/// A judge for `schema`, formats included.
pub fn judge(schema: &Value) -> jsonschema::Validator {
    jsonschema::options()
        .should_validate_formats(true)
        .build(schema)
        .unwrap_or_else(|error| panic!("the judge cannot read {schema}: {error}"))
}

/// Draws outputs for `schema`, has them judged, and returns them.
pub fn check(vocabulary: &Vocabulary, schema: &Value, whitespace: Whitespace, seeds: u64) -> Vec<String> {
    let judge = judge(schema);
    let guide = vocabulary
        .compile(&Constraint::JsonSchema(schema.clone()), whitespace)
        .unwrap_or_else(|error| panic!("{schema}: {error}"));
    (0..seeds)
        .map(|seed| {
            let output = vocabulary.draw(&mut *guide.fork(), seed, MOST_TOKENS);
            let text = match output {
                Ok(output) => output.text,
                Err(output) => panic!("{}, seed {seed}: {schema} has no end: {}", vocabulary.name, output.text),
            };
            let value: Value = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{}, seed {seed}: {schema}: {error} in {text}", vocabulary.name));
            if let Err(error) = judge.validate(&value) {
                panic!("{}, seed {seed}: {schema}: {error} in {text}", vocabulary.name);
            }
            text
        })
        .collect()
}

/// Schemas with what people use, and the bytes that an output can have at most, if the schema bounds them.
pub fn cases() -> Vec<(Value, Option<usize>)> {
    let open = |schema: Value| (schema, None);
    let bounded = |schema: Value, bytes: usize| (schema, Some(bytes));
    vec![
        // Scalars.
        bounded(json!({"type": "null"}), 4),
        bounded(json!({"type": "boolean"}), 5),
        bounded(json!({"type": "integer"}), 17),
        bounded(json!({"type": "number"}), 26),
        open(json!({"type": "string"})),
        bounded(json!({"type": ["integer", "null"]}), 17),
        open(json!({"type": ["string", "boolean", "number"]})),
        // Ranges and steps.
        bounded(json!({"type": "integer", "minimum": 0, "maximum": 255}), 3),
        bounded(json!({"type": "integer", "minimum": -17, "exclusiveMaximum": 42}), 3),
        bounded(json!({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 11}), 2),
        bounded(json!({"type": "integer", "minimum": 1_000_000}), 16),
        bounded(json!({"type": "integer", "maximum": -5}), 17),
        bounded(json!({"type": "number", "minimum": 0, "maximum": 1}), 10),
        bounded(json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}), 10),
        bounded(json!({"type": "number", "minimum": -90.5, "maximum": 90.5}), 12),
        bounded(json!({"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 0}), 11),
        bounded(json!({"type": "number", "exclusiveMinimum": 2.5}), 25),
        bounded(json!({"type": "integer", "multipleOf": 7, "minimum": -100, "maximum": 100}), 3),
        bounded(json!({"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 10}), 5),
        bounded(json!({"type": "integer", "multipleOf": 100}), 17),
        bounded(json!({"minimum": 10, "maximum": 20}), 11),
        bounded(json!({"type": "integer", "format": "uint8", "minimum": 0}), 3),
        bounded(json!({"type": "number", "format": "double"}), 26),
        // Strings.
        bounded(json!({"type": "string", "maxLength": 5}), 22),
        bounded(json!({"type": "string", "minLength": 3, "maxLength": 3}), 14),
        open(json!({"type": "string", "minLength": 20})),
        bounded(json!({"type": "string", "pattern": "^[A-Z]{2}-\\d{4}$"}), 9),
        open(json!({"type": "string", "pattern": "[aeiou]"})),
        bounded(json!({"type": "string", "pattern": "^\\w+@\\w+\\.(com|org)$", "maxLength": 20}), 22),
        bounded(json!({"type": "string", "pattern": "^(\\+|-)?[\\d\\s.,]{1,6}$"}), 15),
        bounded(json!({"type": "string", "pattern": "^[äöüß✓]{1,4}$"}), 14),
        bounded(json!({"type": "string", "pattern": "^(\"|\\\\|/|\\n){3}$"}), 8),
        bounded(json!({"type": "string", "pattern": "^[\\s\\S]{4}$"}), 18),
        // Formats.
        bounded(json!({"type": "string", "format": "date"}), 12),
        bounded(json!({"type": "string", "format": "time"}), 26),
        bounded(json!({"type": "string", "format": "date-time"}), 37),
        bounded(json!({"type": "string", "format": "duration"}), 40),
        bounded(json!({"type": "string", "format": "email"}), 174),
        bounded(json!({"type": "string", "format": "hostname"}), 110),
        bounded(json!({"type": "string", "format": "ipv4"}), 17),
        bounded(json!({"type": "string", "format": "ipv6"}), 41),
        bounded(json!({"type": "string", "format": "uuid"}), 38),
        open(json!({"type": "string", "format": "uri"})),
        open(json!({"type": "string", "format": "json-pointer"})),
        bounded(json!({"type": "string", "format": "date", "pattern": "^2024-"}), 12),
        bounded(json!({"type": ["string", "null"], "format": "ipv4", "maxLength": 9}), 11),
        // Values.
        bounded(json!({"enum": ["red", "green", "blue", 7, 2.5, null, true, [1, "x"], {"a": {"b": []}}]}), 14),
        bounded(json!({"const": {"kind": "a \"quoted\"\nname", "size": [1.5, -3]}}), 55),
        bounded(json!({"type": "string", "enum": ["ja", "nein", "vielleicht", "日本", "🦀"]}), 12),
        bounded(json!({"type": "integer", "enum": [1, 10, 100, -1]}), 3),
        // Arrays.
        bounded(json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 3}), 19),
        bounded(
            json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 4, "maxItems": 6}),
            13,
        ),
        bounded(
            json!({"type": "array", "prefixItems": [{"type": "integer", "maximum": 9, "minimum": 0}, {"enum": ["x"]}], "items": false}),
            7,
        ),
        bounded(
            json!({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3, "maxItems": 5}),
            11,
        ),
        bounded(
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{"const": "a"}, {"const": "b"}], "additionalItems": false, "minItems": 2}),
            9,
        ),
        open(
            json!({"type": "array", "items": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}, "minItems": 1}),
        ),
        open(json!({"type": "array"})),
        bounded(json!({"type": "array", "items": {"enum": ["a"]}, "uniqueItems": true, "maxItems": 1}), 5),
        // Objects.
        bounded(json!({"type": "object", "additionalProperties": false}), 2),
        bounded(
            json!({"type": "object", "additionalProperties": false, "required": ["id"],
                   "properties": {"id": {"type": "integer", "minimum": 1, "maximum": 99}, "ok": {"type": "boolean"}}}),
            20,
        ),
        open(
            json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}}, "required": ["name", "age"]}),
        ),
        open(json!({"type": "object", "additionalProperties": {"type": "integer"}})),
        open(
            json!({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}}),
        ),
        open(
            json!({"type": "object", "patternProperties": {"^x-": {"type": "string", "maxLength": 5}}, "additionalProperties": false}),
        ),
        open(
            json!({"type": "object", "properties": {"x-id": {"minimum": 5}}, "patternProperties": {"^x-": {"type": "integer"}, "^y-": {"type": "null"}}, "required": ["x-id"]}),
        ),
        bounded(
            json!({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "minProperties": 1, "maxProperties": 1, "additionalProperties": false}),
            7,
        ),
        open(
            json!({"type": "object", "additionalProperties": {"type": "null"}, "maxProperties": 2, "minProperties": 1}),
        ),
        open(json!({"type": "object", "required": ["free"]})),
        bounded(
            json!({"type": "object", "required": ["größe", "名前", "a\"b\\c"], "additionalProperties": false,
                   "properties": {"größe": {"const": 1}, "名前": {"enum": ["猫", "犬"]}, "a\"b\\c": {"type": "null"}}}),
            70,
        ),
        open(
            json!({"type": "object", "properties": {"a/b": {"type": "object", "properties": {"c~d": {"type": "array", "items": {"type": "object", "properties": {"deep": {"type": "boolean"}}, "required": ["deep"], "additionalProperties": false}, "maxItems": 2}}, "required": ["c~d"], "additionalProperties": false}}, "required": ["a/b"], "additionalProperties": false}),
        ),
        // Put together.
        open(
            json!({"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"v": {"type": "integer"}}, "required": ["v"]}]}),
        ),
        bounded(json!({"anyOf": [{"const": "a"}, {"const": "ab"}, {"const": "abc"}]}), 5),
        open(
            json!({"oneOf": [{"type": "string", "maxLength": 4}, {"type": "array", "items": {"type": "null"}}, {"type": "null"}]}),
        ),
        open(json!({"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["kind", "r"]},
            {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "number"}}, "required": ["kind", "side"]}]})),
        open(
            json!({"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "discriminator": {"propertyName": "pet"},
            "$defs": {"cat": {"type": "object", "properties": {"pet": {"const": "cat"}}, "required": ["pet"], "additionalProperties": false},
                      "dog": {"type": "object", "properties": {"pet": {"const": "dog"}, "good": {"type": "boolean"}}, "required": ["pet"], "additionalProperties": false}}}),
        ),
        bounded(json!({"allOf": [{"type": "integer", "minimum": 10}, {"maximum": 20}, {"multipleOf": 5}]}), 2),
        bounded(json!({"allOf": [{"type": "string", "maxLength": 6}, {"pattern": "^a"}, {"pattern": "z$"}]}), 26),
        open(
            json!({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"a": {"minimum": 0}, "b": {"type": "null"}}, "required": ["b"]}]}),
        ),
        bounded(
            json!({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": false, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            13,
        ),
        // References and recursion.
        open(
            json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"], "additionalProperties": false}}}),
        ),
        open(
            json!({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}, "required": ["children"], "additionalProperties": false}),
        ),
        open(
            json!({"definitions": {"a b": {"enum": ["x", "y"]}}, "type": "array", "items": {"$ref": "#/definitions/a%20b"}, "minItems": 2, "maxItems": 3}),
        ),
        open(
            json!({"anyOf": [{"$ref": "#/$defs/expression"}], "$defs": {"expression": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "array", "prefixItems": [{"enum": ["+", "*"]}, {"$ref": "#/$defs/expression"}, {"$ref": "#/$defs/expression"}], "items": false, "minItems": 3}]}}}),
        ),
        // Anything.
        open(json!({})),
        open(json!(true)),
        open(json!({"title": "anything", "description": "at all"})),
        open(json!({"type": "object", "properties": {"any": {}}, "required": ["any"], "additionalProperties": false})),
    ]
}

fn check_all(vocabulary: &Vocabulary, whitespace: Whitespace, seeds: u64) {
    let cases = cases();
    assert!(cases.len() >= 60, "{}", cases.len());
    for (schema, most_bytes) in &cases {
        for text in check(vocabulary, schema, whitespace, seeds) {
            if let (Some(most_bytes), Whitespace::Compact) = (most_bytes, whitespace) {
                assert!(text.len() <= *most_bytes, "{schema}: {} bytes in {text}", text.len());
            }
        }
    }
}

#[test]
fn outputs_of_the_tiny_vocabulary_fit_their_schemas() {
    check_all(tiny(), Whitespace::Compact, 4 * SEEDS);
}

#[test]
fn outputs_of_a_sentencepiece_vocabulary_fit_their_schemas() {
    check_all(sentencepiece(), Whitespace::Compact, SEEDS);
}

#[test]
fn outputs_of_smollm2s_vocabulary_fit_their_schemas() {
    if let Some(vocabulary) = smollm2() {
        check_all(vocabulary, Whitespace::Compact, SEEDS);
    }
}

#[test]
fn outputs_with_white_space_fit_their_schemas() {
    check_all(tiny(), Whitespace::UpTo(3), SEEDS);
}
