//! Regular expressions, choices and grammars.

use crate::sampler::{Vocabulary, tiny, vocabularies};
use octavo::sampling::{Constraint, Grammar, Whitespace};

const MOST_TOKENS: usize = 2_000;

/// Outputs drawn for a constraint. All must end.
fn draws(vocabulary: &Vocabulary, constraint: &Constraint, seeds: u64) -> Vec<String> {
    let guide = vocabulary
        .compile(constraint, Whitespace::Compact)
        .unwrap_or_else(|error| panic!("{}, {constraint:?}: {error}", vocabulary.name));
    let draw = |seed| match vocabulary.draw(&mut *guide.fork(), seed, MOST_TOKENS) {
        Ok(output) => output.text,
        Err(output) => panic!("{}, seed {seed}: {constraint:?} has no end: {}", vocabulary.name, output.text),
    };
    (0..seeds).map(draw).collect()
}

/// Expressions as people write them, and corners of the notation.
const EXPRESSIONS: [&str; 44] = [
    "yes|no",
    "[0-9]+",
    "-?\\d{1,5}(\\.\\d{2})?",
    "[A-Z][a-z]{2,8}( [A-Z][a-z]{2,8})?",
    "\\d{4}-\\d{2}-\\d{2}",
    "\\d{3}-\\d{3}-\\d{4}",
    "[a-z0-9._]{1,12}@[a-z]{2,8}\\.(com|org|net)",
    "(25[0-5]|2[0-4]\\d|1?\\d?\\d)(\\.(25[0-5]|2[0-4]\\d|1?\\d?\\d)){3}",
    "#[0-9a-fA-F]{6}",
    "https?://[a-z]{1,20}\\.[a-z]{2,3}(/[a-z]*)*",
    "(?i)hello",
    "(?:ab)*c",
    "a*",
    "a?b?c?d",
    "",
    "x{3}",
    "x{2,}y",
    "^anchored$",
    "^a$|^b$",
    "(a|ab)(c|bcd)",
    "(a+)+b",
    "[^a-z]{1,4}!",
    "[\\w.]+;",
    "\\s{1,3}x",
    "\\S{2,6}\\.",
    "\\p{Lu}\\p{Ll}{1,5} ",
    "\\p{Greek}{1,4}\\.",
    "[äöüßÄÖÜ]{1,5}",
    "(日本|中国|한국)",
    "[😀-😿]{1,3}",
    "é|e\u{301}",
    ".{0,10}\\n",
    "(?s).{1,5}\\.",
    "\"(\\\\.|[^\"\\\\])*\"",
    "\\[(\\d(, \\d){0,4})?\\]",
    "\\{\\}|\\(\\)",
    "a/b/c",
    "\\x41\\u{42}\\u0043",
    "[a-c&&b-d]{2}",
    "[[:alpha:]]{3}",
    "(?P<year>\\d{4})/(?P<month>0[1-9]|1[0-2])",
    "a+?b",
    "\\t\\r\\n",
    "(one|two|three)(, (one|two|three)){0,3} and more",
];

#[test]
fn regular_expressions_match_from_the_first_to_the_last_character() {
    for vocabulary in vocabularies() {
        for expression in EXPRESSIONS {
            let judge = regex::Regex::new(&format!("^(?:{expression})$")).unwrap();
            for text in draws(vocabulary, &Constraint::Regex(expression.to_owned()), 5) {
                assert!(judge.is_match(&text), "{}: {expression} and {text:?}", vocabulary.name);
            }
        }
    }
}

#[test]
fn everything_that_an_expression_matches_can_come() {
    for (expression, language) in [
        ("(a|ab)(c|bcd)", &["ac", "abc", "abcd", "abbcd"][..]),
        ("a?b?c?", &["", "a", "b", "c", "ab", "ac", "bc", "abc"]),
        ("[😀-😂]", &["😀", "😁", "😂"]),
    ] {
        let mut drawn = draws(tiny(), &Constraint::Regex(expression.to_owned()), 200);
        drawn.sort();
        drawn.dedup();
        let mut language: Vec<_> = language.iter().map(|text| (*text).to_owned()).collect();
        language.sort();
        assert_eq!(drawn, language, "{expression}");
    }
}

#[test]
fn choices_come_as_they_stand_and_all_of_them() {
    let words = ["a", "ab", "abc", "(x|y)*", "\"quoted\"", "tab\t", "新しい", "🦀🦀", "/slash/", "a\\b"];
    let choices: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    for vocabulary in vocabularies() {
        let mut drawn = draws(vocabulary, &Constraint::Choice(choices.clone()), 1_000);
        assert!(drawn.iter().all(|text| choices.contains(text)));
        drawn.sort();
        drawn.dedup();
        assert_eq!(drawn.len(), choices.len(), "{}: {drawn:?}", vocabulary.name);
    }
}

/// Whether `text` is a sum of products of numbers in parentheses.
fn is_arithmetic(text: &str) -> bool {
    fn expression(text: &[u8], mut at: usize) -> Option<usize> {
        at = term(text, at)?;
        while let Some(b'+' | b'-' | b'*') = text.get(at) {
            at = term(text, at + 1)?;
        }
        Some(at)
    }
    fn term(text: &[u8], at: usize) -> Option<usize> {
        if text.get(at) == Some(&b'(') {
            let end = expression(text, at + 1)?;
            return (text.get(end) == Some(&b')')).then_some(end + 1);
        }
        let digits = text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        (digits > 0).then_some(at + digits)
    }
    expression(text.as_bytes(), 0) == Some(text.len())
}

/// Random arithmetic opens parentheses for ever; a depth in the grammar bounds it.
fn arithmetic(notation: &str) -> String {
    match notation {
        "lark" => "start: sum\nsum: term ((\"+\" | \"-\" | \"*\") term){0,3}\nterm: /[0-9]{1,3}/ | \"(\" inner \")\"\n\
                   inner: /[0-9]{1,3}/ | \"(\" inner \")\"\n"
            .to_owned(),
        _ => "# llama.cpp's notation\nroot ::= term ([-+*] term){0,3}\nterm ::= number | \"(\" inner \")\"\n\
              inner ::= number | \"(\" inner \")\"\nnumber ::= [0-9]{1,3}\n"
            .to_owned(),
    }
}

#[test]
fn grammars_in_both_notations_give_texts_of_their_language() {
    for vocabulary in vocabularies() {
        for grammar in [Grammar::Lark(arithmetic("lark")), Grammar::Gbnf(arithmetic("gbnf"))] {
            for text in draws(vocabulary, &Constraint::Grammar(grammar), 20) {
                assert!(is_arithmetic(&text), "{}: {text:?}", vocabulary.name);
            }
        }
    }
}

/// llama.cpp's own grammar of JSON, with its white space bounded.
const JSON_GBNF: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]{1,15})? ([eE] [-+]? [0-9] [0-9]?)? ws

# Optional space
ws ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn llama_cpps_grammar_of_json_gives_json() {
    // Half a surrogate pair belongs to that grammar, but is no JSON.
    let half = regex::Regex::new(r"\\u[dD][89a-fA-F]").unwrap();
    for vocabulary in vocabularies() {
        for text in draws(vocabulary, &Constraint::Grammar(Grammar::Gbnf(JSON_GBNF.to_owned())), 20) {
            let value = serde_json::from_str::<serde_json::Value>(&text);
            assert!(value.is_ok_and(|value| value.is_object()) || half.is_match(&text), "{}: {text}", vocabulary.name);
        }
    }
}

#[test]
fn regular_rules_of_gbnf_keep_their_whole_language() {
    let grammar = r#"root ::= first second
        first ::= "a" | "ab"
        second ::= ("c" | "bcd")"#;
    let mut drawn = draws(tiny(), &Constraint::Grammar(Grammar::Gbnf(grammar.to_owned())), 200);
    drawn.sort();
    drawn.dedup();
    assert_eq!(drawn, ["abbcd", "abc", "abcd", "ac"]);
}

#[test]
fn gbnf_reads_escapes_ranges_and_repetitions() {
    for (grammar, expression) in [
        (r#"root ::= "\x41\u00e9\U0001F980\n\"\\""#, "Aé🦀\n\"\\\\"),
        (r#"root ::= [a-cx\]\-]{2,4} | [^\x00-\x7f] "!""#, "[a-cx\\]\\-]{2,4}|[^\\x00-\\x7f]!"),
        ("root ::= \"x\"{3} \"y\"{,2} \"z\"{1,} .", "(?s)x{3}y{0,2}z{1,}."),
        ("root ::= a\n  | b\na ::= \"p\"?\nb ::= \"q\"+", "p?|q+"),
        ("root ::= ( # comment\n \"a\" |\n \"b\" )\n\n", "a|b"),
        ("root ::= \"(\" root \")\" | \"\"\n", "\\(*\\)*"),
    ] {
        let judge = regex::Regex::new(&format!("^(?:{expression})$")).unwrap();
        for text in draws(tiny(), &Constraint::Grammar(Grammar::Gbnf(grammar.to_owned())), 20) {
            assert!(judge.is_match(&text), "{grammar}: {text:?}");
        }
    }
}

#[test]
fn mistakes_in_gbnf_are_named_with_their_rule() {
    for (grammar, part) in [
        ("start ::= \"a\"", "no rule \"root\""),
        ("root ::= a", "the rule \"root\" names \"a\", which is not there"),
        ("root ::= \"a\nb", "line 1: the rule \"root\" has a text that is not closed"),
        ("root ::= \"a\"\nword ::= [z-a]", "line 2: the rule \"word\" has the range"),
        ("root ::= (\"a\"", "parenthesis that is not closed"),
        ("root ::= \"a\")", "where nothing can be understood"),
        ("root ::= *", "repeats nothing"),
        ("root ::= \"a\"{2,1}", "has the repetition {2,1}"),
        ("root ::= \"a\"{x}", "has the repetition {x}"),
        ("root ::= \"\\q\"", "the escape \\q"),
        ("root ::= []", "class without characters"),
        ("root := \"a\"", "no \"::=\""),
        ("root ::= \"a\"\nroot ::= \"b\"", "is there twice"),
        ("= \"a\"", "must begin with its name"),
        ("root ::= !<think> root?", "excludes the token <think>"),
        ("root ::= <think>", "<think>"),
        ("root ::= a{1000}\na ::= \"x\"{1000}", "the rule \"root\" has more characters"),
        ("root ::= \"x\" root{30000}", "repeats 30000 times"),
    ] {
        let constraint = Constraint::Grammar(Grammar::Gbnf(grammar.to_owned()));
        let error = tiny().compile(&constraint, Whitespace::Compact).err();
        let error = error.unwrap_or_else(|| panic!("{grammar} must be refused")).to_string();
        assert!(error.starts_with("grammar: ") && error.contains(part), "{grammar}: {error}");
    }
}

#[test]
fn special_tokens_come_only_by_name() {
    for vocabulary in vocabularies() {
        let name =
            ["<|im_start|>", "<s>"].into_iter().find(|name| vocabulary.tokenizer.token_to_id(name).is_some()).unwrap();
        let start = vocabulary.tokenizer.token_to_id(name).unwrap();
        let named = Constraint::Grammar(Grammar::Lark(format!("start: \"a\" {name} \"b\"")));
        let output = vocabulary.draw(&mut *vocabulary.compile(&named, Whitespace::Compact).unwrap(), 1, 10);
        assert_eq!(output.ok().unwrap().tokens.iter().filter(|token| **token == start).count(), 1);
        let mut mask = vocabulary.mask();
        for constraint in [Constraint::Regex("(?s:.*)".into()), Constraint::Regex(regex::escape(name))] {
            let mut guide = vocabulary.compile(&constraint, Whitespace::Compact).unwrap();
            guide.fill_mask(&mut mask).unwrap();
            for token in vocabulary.allowed(&mask) {
                let special = vocabulary.tokenizer.is_special(token) && !vocabulary.end_tokens.contains(&token);
                assert!(!special, "{}: {token} is special", vocabulary.name);
            }
        }
    }
}
