//! Schemas by chance.

use crate::sampler::tiny;
use crate::schemas::check;
use octavo::sampling::Whitespace;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn scalar() -> impl Strategy<Value = Value> {
    let range = |low: i64, high: i64| (low..high, 0..high).prop_map(|(least, width)| (least, least + width));
    prop_oneof![
        Just(json!({"type": "null"})),
        Just(json!({"type": "boolean"})),
        range(-5000, 5000).prop_map(|(least, most)| json!({"type": "integer", "minimum": least, "maximum": most})),
        (range(-300, 300), any::<bool>(), any::<bool>()).prop_filter_map("empty", |((least, most), above, below)| {
            let names = [
                ["minimum", "exclusiveMinimum"][usize::from(above)],
                ["maximum", "exclusiveMaximum"][usize::from(below)],
            ];
            (most > least + 1)
                .then(|| json!({"type": "number", names[0]: least as f64 / 8.0, names[1]: most as f64 / 8.0}))
        }),
        (1i64..40, range(-1000, 1000)).prop_filter_map("no multiple", |(step, (least, most))| {
            (most - least > 2 * step)
                .then(|| json!({"type": "integer", "multipleOf": step, "minimum": least, "maximum": most}))
        }),
        range(0, 12).prop_map(|(least, most)| json!({"type": "string", "minLength": least, "maxLength": most})),
        "[a-zé日]{0,6}".prop_map(|text| json!({ "const": text })),
        proptest::collection::hash_set("[a-d\"\\\\/ ]{0,3}", 1..5).prop_map(|texts| json!({ "enum": texts })),
        prop_oneof![Just("^[a-f]{1,4}$"), Just("^x"), Just("[0-9]$"), Just("^\\w+ \\d$"), Just("^(a|b)*$")]
            .prop_map(|pattern| json!({"type": "string", "pattern": pattern})),
        prop_oneof![Just("date"), Just("time"), Just("ipv4"), Just("uuid"), Just("email")]
            .prop_map(|format| json!({"type": "string", "format": format})),
    ]
}

fn schema() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(3, 24, 4, |inner| {
        let members = proptest::collection::vec(("[a-e/~ü]{1,2}", inner.clone(), any::<bool>()), 0..4);
        prop_oneof![
            (inner.clone(), 0usize..3, 0usize..3).prop_map(|(items, least, more)| {
                json!({"type": "array", "items": items, "minItems": least, "maxItems": least + more})
            }),
            (proptest::collection::vec(inner.clone(), 1..3), any::<bool>()).prop_map(|(prefix, all)| {
                let least = if all { prefix.len() } else { 0 };
                json!({"type": "array", "prefixItems": prefix, "items": false, "minItems": least})
            }),
            (members, proptest::option::of(inner.clone())).prop_map(|(members, additional)| {
                let required: std::collections::BTreeSet<_> =
                    members.iter().filter(|(.., required)| *required).map(|(name, ..)| name.clone()).collect();
                let properties: Map<_, _> = members.into_iter().map(|(name, schema, _)| (name, schema)).collect();
                let additional = additional.unwrap_or(Value::Bool(false));
                json!({"type": "object", "properties": properties, "required": required, "additionalProperties": additional})
            }),
            proptest::collection::vec(inner.clone(), 1..4).prop_map(|cases| json!({ "anyOf": cases })),
            inner.clone().prop_map(|schema| json!({"allOf": [schema]})),
            (inner.clone(), inner.clone()).prop_map(|(one, two)| json!({"type": "object", "additionalProperties": false,
                "allOf": [{"properties": {"p": one}}], "properties": {"p": true, "q": two}})),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn outputs_of_random_schemas_fit(schema in schema()) {
        check(tiny(), &schema, Whitespace::Compact, 3);
    }

    #[test]
    fn references_are_what_they_name(one in schema(), two in schema()) {
        let schema = json!({
            "$defs": {"one": one, "two": {"anyOf": [two, {"$ref": "#/$defs/one"}]}},
            "type": "array", "prefixItems": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}], "items": false,
        });
        check(tiny(), &schema, Whitespace::UpTo(2), 1);
    }
}
