//! Constraints that would cost too much, or mean nothing: refused with a reason, soon, and without a panic.

use crate::sampler::tiny;
use octavo::sampling::{Constraint, Grammar, Whitespace};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Unoptimised code on a busy machine; optimised code on an idle one takes a tenth.
const SOON: Duration = Duration::from_secs(20);

fn error(constraint: &Constraint) -> String {
    let began = Instant::now();
    let error = tiny().compile(constraint, Whitespace::Compact).err();
    assert!(began.elapsed() < SOON, "took {:?}", began.elapsed());
    match error {
        Some(error) => error.to_string(),
        None => panic!("{constraint:?} must be refused"),
    }
}

fn schema_error(schema: Value) -> String {
    error(&Constraint::JsonSchema(schema))
}

/// Compiles, or is refused; either is well if it is soon. The first mask is part of it.
fn survives(constraint: &Constraint) {
    let began = Instant::now();
    let outcome = tiny().compile(constraint, Whitespace::Compact);
    println!("{:?}: {:?}", began.elapsed(), outcome.err().map(|error| error.to_string()));
    assert!(began.elapsed() < SOON, "took {:?}", began.elapsed());
}

#[test]
fn unsupported_keywords_are_named() {
    for keyword in [
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
        "unevaluatedItems",
        "contentEncoding",
        "contentMediaType",
        "$dynamicRef",
        "$recursiveRef",
        "nullable",
        "x-order",
        "x-guidance",
        "minimun",
    ] {
        for schema in [
            json!({"type": "object", keyword: {}}),
            json!({"properties": {"a": {"items": {"anyOf": [{"type": "null"}, {keyword: true}]}}}}),
            json!({"$ref": "#/$defs/x", "$defs": {"x": {keyword: []}}}),
        ] {
            let error = schema_error(schema);
            assert!(error.contains(&format!("the keyword {keyword:?} is not supported")), "{error}");
        }
    }
    assert!(schema_error(json!({"format": "phone"})).contains("the format \"phone\" is not supported"));
    assert!(schema_error(json!({"format": "unknown"})).contains("the format \"unknown\" is not supported"));
    assert!(schema_error(json!({"type": "array", "uniqueItems": true})).contains("uniqueItems"));
    // What is not reached is not held against a schema.
    survives(&Constraint::JsonSchema(json!({"type": "null", "$defs": {"unused": {"not": {}}}})));
}

#[test]
fn keywords_with_wrong_values_are_named() {
    for (schema, part) in [
        (json!([]), "a schema must be an object or a boolean"),
        (json!({"type": "text"}), "the type \"text\""),
        (json!({"type": 7}), "type is 7"),
        (json!({"type": []}), "type is []"),
        (json!({"properties": []}), "#/properties must be an object"),
        (json!({"properties": {"a~b/c": 7}}), "#/properties/a~0b~1c: a schema must be"),
        (json!({"required": "a"}), "required must be a list of strings"),
        (json!({"required": [1]}), "required must be a list of strings"),
        (json!({"anyOf": []}), "#/anyOf must be a list"),
        (json!({"enum": []}), "#/enum must be a list with at least one value"),
        (json!({"enum": [9_007_199_254_740_993i64]}), "9007199254740993 is beyond"),
        (json!({"const": "\u{1}"}), "U+0001"),
        (json!({"minLength": -1}), "minLength is -1"),
        (json!({"maxItems": 1.5}), "maxItems is 1.5"),
        (json!({"minItems": 2_000_000}), "minItems is 2000000, more than the limit of 1000000"),
        (json!({"pattern": "("}), "#: pattern \"(\": unclosed group"),
        (json!({"pattern": "(?=a)"}), "looking ahead"),
        (json!({"patternProperties": {"\\b": {}}}), "word boundaries"),
        (json!({"$ref": "other.json"}), "names another document"),
        (json!({"$ref": "#/$defs/x"}), "does not have"),
        (json!({"prefixItems": [{}], "additionalItems": false}), "additionalItems beside prefixItems"),
        (json!({"minProperties": 3}), "minProperties is 3"),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf is supported only where"),
        (json!({"properties": {"a": {"$id": "x", "$ref": "#"}}}), "$id below the root"),
    ] {
        let error = schema_error(schema.clone());
        assert!(error.starts_with("json_schema: ") && error.contains(part), "{schema}: {error}");
    }
    assert!(schema_error(json!("{\"type\": ")).contains("the schema is no JSON: EOF"));
}

#[test]
fn what_nothing_can_satisfy_is_refused() {
    for schema in [
        json!(false),
        json!({"allOf": [{"type": "string"}, {"type": "integer"}]}),
        json!({"type": "integer", "minimum": 5, "maximum": 4}),
        json!({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}),
        json!({"type": "integer", "multipleOf": 10, "minimum": 11, "maximum": 19}),
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
        json!({"type": "string", "pattern": "^a$", "minLength": 2}),
        json!({"type": "string", "const": 7}),
        json!({"type": "array", "minItems": 3, "maxItems": 2}),
        json!({"type": "array", "items": false, "minItems": 1}),
        json!({"type": "object", "required": ["a"], "properties": {"a": false}}),
        json!({"type": "object", "required": ["a"], "additionalProperties": false}),
        json!({"enum": ["a", "b"], "const": "c"}),
        json!({"anyOf": [false, {"type": "integer", "minimum": 1, "maximum": 0}]}),
        // Each needs another one inside, without end.
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    ] {
        println!("{}", schema_error(schema));
    }
    assert!(error(&Constraint::Regex("[^\\s\\S]".into())).starts_with("regex: "));
    println!("{}", error(&Constraint::Grammar(Grammar::Lark("start: start \"a\"".into()))));
    println!("{}", error(&Constraint::Grammar(Grammar::Gbnf("root ::= root \"a\"".into()))));
}

#[test]
fn large_sources_are_refused_by_size_or_compile_soon() {
    let megabyte: Vec<String> = (0..60_000).map(|at| format!("choice number {at}")).collect();
    assert!(schema_error(json!({ "enum": megabyte })).contains("more than the limit of 524288"));
    assert!(schema_error(json!(format!("{{\"title\": {:?}}}", "x".repeat(1 << 20)))).contains("more than the limit"));
    assert!(error(&Constraint::Choice(megabyte)).contains("more than the limit"));
    for constraint in [
        Constraint::Regex("a".repeat(1 << 20)),
        Constraint::Grammar(Grammar::Lark("a".repeat(1 << 20))),
        Constraint::Grammar(Grammar::Gbnf("a".repeat(1 << 20))),
    ] {
        assert!(error(&constraint).contains("1048576 bytes, more than the limit"), "{}", constraint.name());
    }
    let names = |count: usize, size: usize| (0..count).map(move |at| format!("{at:0size$}"));
    let properties = |schema: Value, count: usize| -> Value {
        json!({"type": "object", "properties": names(count, 6).map(|name| (name, schema.clone())).collect::<serde_json::Map<_, _>>()})
    };
    survives(&Constraint::JsonSchema(json!({ "enum": names(20_000, 20).collect::<Vec<_>>() })));
    survives(&Constraint::JsonSchema(properties(json!({"type": "integer"}), 10_000)));
    let patterns = properties(json!({"type": "string", "format": "uri"}), 5_000);
    assert!(schema_error(patterns).contains("more strings with a pattern or format than the limit of 500"));
    survives(&Constraint::JsonSchema(properties(json!({"type": "string", "format": "uri"}), 500)));
    let names_like = |count: usize| -> Value {
        json!({"patternProperties": names(count, 3).map(|name| (format!("^{name}.*z"), true.into())).collect::<serde_json::Map<_, _>>()})
    };
    assert!(schema_error(names_like(17)).contains("17 entries, more than the limit of 16"));
    survives(&Constraint::JsonSchema(names_like(16)));
    survives(&Constraint::JsonSchema(json!({"anyOf": vec![properties(json!({"type": "number"}), 20); 300]})));
    survives(&Constraint::JsonSchema(json!({"oneOf": vec![properties(json!({"type": "number"}), 3); 1_000]})));
    survives(&Constraint::JsonSchema(json!({"allOf": vec![properties(json!({"type": "number"}), 40); 150]})));
    survives(&Constraint::Choice(names(10_000, 50).collect()));
    survives(&Constraint::Regex(names(10_000, 50).collect::<Vec<_>>().join("|")));
}

#[test]
fn deep_nesting_is_refused_without_recursion() {
    let mut deep = json!({"type": "null"});
    for _ in 0..20_000 {
        // `json!` would copy it, which recurses too.
        deep = Value::Object([("items".to_owned(), deep)].into_iter().collect());
    }
    let deep = Constraint::JsonSchema(deep);
    assert!(error(&deep).contains("nests deeper than the limit of 128 levels"));
    // Copying or dropping it would recurse, in serde_json.
    let Constraint::JsonSchema(deep) = deep else { unreachable!() };
    let mut open = vec![deep];
    while let Some(value) = open.pop() {
        if let Value::Object(entries) = value {
            open.extend(entries.into_iter().map(|(_, value)| value));
        }
    }
    let text = format!("{}{}", "{\"items\":".repeat(50_000), "}".repeat(50_000));
    assert!(schema_error(json!(text)).contains("recursion limit"));
    let mut nested = json!({"type": "null"});
    for _ in 0..62 {
        nested = json!({"type": "array", "items": {"anyOf": [nested]}})["items"].take();
    }
    survives(&Constraint::JsonSchema(nested));
    assert!(error(&Constraint::Regex("(".repeat(100_000))).starts_with("regex: "));
    assert!(error(&Constraint::Grammar(Grammar::Lark(format!("start: {}", "(".repeat(100_000))))).contains("deeper"));
    assert!(error(&Constraint::Grammar(Grammar::Gbnf(format!("root ::= {}", "(".repeat(100_000))))).contains("deeper"));
}

#[test]
fn long_chains_are_refused_or_compile() {
    for length in [40, 900, 5_000] {
        let mut definitions = serde_json::Map::new();
        for at in 0..length {
            let next = json!({"type": "object", "properties": {"a": {"$ref": format!("#/$defs/{}", at + 1)}}});
            definitions.insert(at.to_string(), next);
        }
        definitions.insert(length.to_string(), json!({"type": "null"}));
        survives(&Constraint::JsonSchema(json!({"$ref": "#/$defs/0", "$defs": definitions})));
        let rules = |sign: &str, name: &str| -> String {
            let chain = (0..length).map(|at| format!("{name}{at}{sign} \"a\" {name}{} \"b\"\n", at + 1));
            chain.collect::<String>() + &format!("{name}{length}{sign} {name}0 | \"c\"\n")
        };
        survives(&Constraint::Grammar(Grammar::Lark(format!("start: a0\n{}", rules(":", "a")))));
        survives(&Constraint::Grammar(Grammar::Lark(format!("start: A0\n{}", rules(":", "A").replace("A0 | ", "")))));
        survives(&Constraint::Grammar(Grammar::Gbnf(format!("root ::= a0\n{}", rules(" ::=", "a")))));
        let regular = rules(" ::=", "a").replace("a0 | ", "");
        survives(&Constraint::Grammar(Grammar::Gbnf(format!("root ::= a0\n{regular}"))));
    }
}

#[test]
fn regex_bombs_are_refused_or_followed_within_limits() {
    for expression in ["(a{1000}){1000}", "((((a{99}){99}){99}){99}){99}", "(\\w{200}){200}", "(a{10000}|b{10000}){2}"]
    {
        assert!(error(&Constraint::Regex(expression.into())).contains("more than the limit of 20000"), "{expression}");
        assert!(
            schema_error(json!({ "pattern": expression })).contains("more than the limit of 20000"),
            "{expression}"
        );
    }
    let gbnf = "root ::= a{1000}\na ::= b{1000}\nb ::= \"x\"{1000}".to_owned();
    assert!(error(&Constraint::Grammar(Grammar::Gbnf(gbnf))).contains("the rule \"a\" has more characters"));
    for expression in [
        "(a|aa|aaa|aaaa)*b",
        "(.*a.*b.*c.*d.*e.*f)*",
        "(?:.*x){100}",
        ".*a.{1000}",
        "(a?){500}a{500}",
        "(x+x+)+y",
        "[a-z]*[0-9][a-z0-9]{200}(ab|ba){200}",
        "(\\p{L}|\\p{N}|\\p{P}){1000}",
    ] {
        let constraint = Constraint::Regex(expression.into());
        let began = Instant::now();
        let Ok(mut guide) = tiny().compile(&constraint, Whitespace::Compact) else { continue };
        let mut mask = tiny().mask();
        // Follows it for a while; a refusal names the place.
        for position in 0..100 {
            if guide.is_done() {
                break;
            }
            if let Err(error) = guide.fill_mask(&mut mask) {
                assert!(error.to_string().contains(&format!("after {position} tokens")), "{expression}: {error}");
                break;
            }
            let allowed = tiny().allowed(&mask);
            guide.accept(allowed[position * 31 % allowed.len()]).unwrap();
        }
        println!("{expression}: {:?}", began.elapsed());
        assert!(began.elapsed() < SOON, "{expression} took {:?}", began.elapsed());
    }
}

#[test]
fn broken_grammars_are_refused_with_the_place() {
    for (grammar, part) in [
        ("", "start"),
        ("start: a", "a"),
        ("start: \"a", "1("),
        ("start: /[/", "regex"),
        ("start: <|nobody|>", "unknown special token"),
        ("start: <[99999]>", "Token range end"),
        ("start: @other", "other"),
        ("start: %json {\"not\": {}}", "%json: #: the keyword \"not\""),
        ("%import other.THING\nstart: THING", "other.THING"),
    ] {
        let error = error(&Constraint::Grammar(Grammar::Lark(grammar.into())));
        assert!(error.starts_with("grammar: ") && error.contains(part), "{grammar}: {error}");
        assert!(error.len() < 400, "{error}");
    }
}

#[test]
fn random_bytes_are_no_grammar_and_no_reason_to_panic() {
    let alphabet = "ab\"'\\/()[]{}<>|*+?.,:;=%~&^$#-_ \n0019éÿ🦀";
    let characters: Vec<char> = alphabet.chars().collect();
    for seed in 0..300 {
        let length = octavo::base::rng::token_word(seed, 0) % 60;
        let text: String = (1..=length)
            .map(|at| characters[octavo::base::rng::token_word(seed, at) as usize % characters.len()])
            .collect();
        println!("seed {seed}: {text:?}");
        for constraint in [
            Constraint::Regex(text.clone()),
            Constraint::JsonSchema(json!({ "pattern": text })),
            Constraint::JsonSchema(json!(text)),
            Constraint::Grammar(Grammar::Lark(format!("start: {text}"))),
            Constraint::Grammar(Grammar::Gbnf(format!("root ::= {text}"))),
        ] {
            if let Err(error) = tiny().compile(&constraint, Whitespace::Compact) {
                assert!(!error.to_string().contains("please report"), "{error}");
            }
        }
    }
}
