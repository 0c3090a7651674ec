//! What a guide promises the token loop.

use crate::sampler::{Vocabulary, is_set, tiny, vocabularies};
use octavo::base::rng;
use octavo::sampling::guide::{TokenGuide, forced_token};
use octavo::sampling::{Constraint, Grammar, Whitespace};
use serde_json::json;

fn constraints() -> Vec<Constraint> {
    vec![
        Constraint::JsonObject,
        Constraint::JsonSchema(json!({"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 5})),
        Constraint::JsonSchema(json!(
            "{\"type\": \"object\", \"properties\": {\"é\": {\"enum\": [\"日本\", \"日曜\"]}}}"
        )),
        Constraint::Regex("(ab|a|[0-9]{2,5})*\\.".into()),
        Constraint::Choice(vec!["one".into(), "one more".into(), "two".into()]),
        Constraint::Grammar(Grammar::Lark("start: \"[\" start? \"]\" | /[a-z]+/".into())),
    ]
}

fn guide(vocabulary: &Vocabulary, constraint: &Constraint) -> Box<dyn TokenGuide> {
    vocabulary.compile(constraint, Whitespace::Compact).unwrap()
}

fn mask(vocabulary: &Vocabulary, guide: &mut dyn TokenGuide) -> Vec<u32> {
    let mut mask = vocabulary.mask();
    guide.fill_mask(&mut mask).unwrap();
    mask
}

/// Where a guide is: its mask, or that it is done.
fn place(vocabulary: &Vocabulary, guide: &mut dyn TokenGuide) -> Option<Vec<u32>> {
    (!guide.is_done()).then(|| mask(vocabulary, guide))
}

#[test]
fn after_rollback_and_fork_the_masks_are_those_of_a_fresh_guide() {
    for vocabulary in vocabularies() {
        for constraint in constraints() {
            let start = guide(vocabulary, &constraint);
            for seed in 0..4 {
                let output = vocabulary.draw(&mut *start.fork(), seed, 60);
                let tokens = output.unwrap_or_else(|cut| cut).tokens;
                // The mask at each place, by a guide that only ever goes forward.
                let mut straight = start.fork();
                let mut places = vec![place(vocabulary, &mut *straight)];
                for token in &tokens {
                    straight.accept(*token).unwrap();
                    places.push(place(vocabulary, &mut *straight));
                }
                let mut wandering = start.fork();
                let mut at = 0;
                for step in 0..60 {
                    let draw = rng::token_word(seed, step) as usize;
                    if draw.is_multiple_of(3) {
                        let back = draw / 3 % (at + 1);
                        wandering.rollback(back).unwrap();
                        at -= back;
                    } else if let Some(token) = tokens.get(at) {
                        wandering.accept(*token).unwrap();
                        at += 1;
                    }
                    if draw.is_multiple_of(5) {
                        wandering = wandering.fork();
                    }
                    let here = place(vocabulary, &mut *wandering);
                    assert_eq!(here, places[at], "{}: {constraint:?}, seed {seed}, step {step}", vocabulary.name);
                }
            }
        }
    }
}

#[test]
fn a_fork_goes_its_own_way() {
    let mut one = guide(tiny(), &Constraint::Regex("a*b*c".into()));
    let token = |text: &str| tiny().tokenizer.encode(text, false).unwrap()[0];
    let mut two = one.fork();
    one.accept(token("b")).unwrap();
    two.accept(token("a")).unwrap();
    assert!(one.accept(token("a")).is_err());
    assert!(two.accept(token("a")).is_ok());
}

/// Masks of expressions are kept by states, and each fork numbers the states that it reaches in its own order.
#[test]
fn forks_that_part_keep_masks_of_their_own() {
    let constraint = Constraint::Regex("(a{1,9}b|b{1,9}a|[0-9]{3})*".into());
    let vocabulary = tiny();
    let tokens = |text: &str| vocabulary.tokenizer.encode(text, false).unwrap();
    let start = guide(vocabulary, &constraint);
    let texts = ["a", "b", "1"].map(|letter| format!("{}{}", letter.repeat(3), "ab1234".repeat(2)));
    let mut forks: Vec<_> = texts.iter().map(|_| start.fork()).collect();
    let mut fresh: Vec<_> = texts.iter().map(|_| guide(vocabulary, &constraint)).collect();
    let mut compared = 0;
    for at in 0..texts[0].len() {
        for ((text, fork), fresh) in texts.iter().zip(&mut forks).zip(&mut fresh) {
            let token = tokens(&text[at..=at])[0];
            if fork.accept(token).is_ok() {
                fresh.accept(token).unwrap();
                assert!(place(vocabulary, &mut **fork) == place(vocabulary, &mut **fresh), "{text} at {at}");
                compared += 1;
            }
        }
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn a_mask_allows_exactly_what_is_accepted() {
    let vocabulary = tiny();
    for constraint in constraints() {
        let mut guide = guide(vocabulary, &constraint);
        for position in 0..12 {
            if guide.is_done() {
                break;
            }
            let mask = mask(vocabulary, &mut *guide);
            for token in 0..vocabulary.size as u32 {
                let accepted = guide.accept(token).is_ok();
                assert_eq!(accepted, is_set(&mask, token), "{constraint:?} at {position}: {token}");
                if accepted {
                    guide.rollback(1).unwrap();
                }
            }
            let allowed = vocabulary.allowed(&mask);
            guide.accept(allowed[position * 7 % allowed.len()]).unwrap();
        }
    }
}

#[test]
fn end_tokens_come_together_and_only_where_the_output_may_end() {
    let vocabulary = tiny();
    let ends = |guide: &mut dyn TokenGuide| {
        let mask = mask(vocabulary, guide);
        let set: Vec<bool> = vocabulary.end_tokens.iter().map(|end| is_set(&mask, *end)).collect();
        assert!(set.iter().all(|end| *end == set[0]), "the end tokens must come together");
        assert_eq!(guide.may_end().unwrap(), set[0]);
        set[0]
    };
    assert_eq!(vocabulary.end_tokens.len(), 2);
    let expression = regex::Regex::new("^(ab|abcd)*$").unwrap();
    let mut guide = guide(vocabulary, &Constraint::Regex("(ab|abcd)*".into()));
    let mut text = String::new();
    assert!(ends(&mut *guide), "an empty text matches");
    for letter in ["a", "b", "c", "d", "a", "b"] {
        guide.accept(vocabulary.tokenizer.encode(letter, false).unwrap()[0]).unwrap();
        text.push_str(letter);
        assert!(!guide.is_done());
        assert_eq!(ends(&mut *guide), expression.is_match(&text), "{text}");
    }
    for end in &vocabulary.end_tokens {
        guide.accept(*end).unwrap();
        assert!(guide.is_done());
        assert!(guide.accept(*end).is_err() && guide.fill_mask(&mut vocabulary.mask()).is_err());
        guide.rollback(1).unwrap();
        assert!(!guide.is_done() && ends(&mut *guide));
    }
}

#[test]
fn a_value_is_done_with_its_last_byte() {
    let vocabulary = tiny();
    for whitespace in [Whitespace::Compact, Whitespace::UpTo(4)] {
        let schema = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false});
        let mut guide = vocabulary.compile(&Constraint::JsonSchema(schema), whitespace).unwrap();
        for token in vocabulary.tokenizer.encode("{\"a\":1", false).unwrap() {
            guide.accept(token).unwrap();
            assert!(!guide.is_done());
        }
        guide.accept(vocabulary.tokenizer.encode("}", false).unwrap()[0]).unwrap();
        assert!(guide.is_done());
        guide.rollback(1).unwrap();
        assert!(!guide.is_done());
    }
}

#[test]
fn what_is_complete_from_the_beginning_is_done() {
    let mut empty = guide(tiny(), &Constraint::Regex(String::new()));
    assert!(empty.is_done());
    assert!(empty.accept(tiny().tokenizer.encode("a", false).unwrap()[0]).is_err());
    empty.accept(tiny().end_tokens[1]).unwrap();
    assert!(!guide(tiny(), &Constraint::Regex("a?".into())).is_done());
}

#[test]
fn white_space_is_bounded() {
    let vocabulary = tiny();
    let space = vocabulary.tokenizer.encode("\n", false).unwrap()[0];
    for (whitespace, most) in [(Whitespace::Compact, 0), (Whitespace::UpTo(0), 0), (Whitespace::UpTo(7), 7)] {
        let mut guide = vocabulary.compile(&Constraint::JsonObject, whitespace).unwrap();
        assert!(guide.accept(space).is_err(), "none before the value");
        guide.accept(vocabulary.tokenizer.encode("{", false).unwrap()[0]).unwrap();
        let taken = (0..20).take_while(|_| guide.accept(space).is_ok()).count();
        assert_eq!(taken, most);
    }
}

#[test]
fn forced_tokens_are_those_of_masks_with_one_bit() {
    let vocabulary = tiny();
    let mut guide = guide(vocabulary, &Constraint::Regex("\\]\\}".into()));
    let mut forced = Vec::new();
    while !guide.is_done() {
        let mask = mask(vocabulary, &mut *guide);
        match forced_token(&mask) {
            Some(token) => forced.push(token),
            // Two ways to write it: as one token, or as two.
            None => assert!(vocabulary.allowed(&mask).len() > 1),
        }
        guide.accept(vocabulary.allowed(&mask)[0]).unwrap();
    }
    assert!(!forced.is_empty() && forced.iter().all(|token| vocabulary.tokenizer.id_to_token(*token).is_some()));
}

#[test]
fn masks_of_other_widths_are_filled_as_far_as_they_go() {
    let vocabulary = tiny();
    let mut guide = guide(vocabulary, &Constraint::Regex("[a-z]+".into()));
    let usual = mask(vocabulary, &mut *guide);
    let mut wide = vec![u32::MAX; usual.len() + 9];
    guide.fill_mask(&mut wide).unwrap();
    assert_eq!(&wide[..usual.len()], usual);
    assert!(wide[usual.len()..].iter().all(|word| *word == 0));
}

#[test]
fn without_end_tokens_an_output_ends_where_nothing_may_follow() {
    let tokenizer = tiny().tokenizer.clone();
    let size = tokenizer.vocab_size();
    let compiler = octavo::structured::GrammarCompiler::new(tokenizer.clone(), Vec::new(), size);
    let mut guide = octavo::sampling::guide::GuideCompiler::compile(
        &compiler,
        &Constraint::Regex("a{2}".into()),
        Whitespace::Compact,
    )
    .unwrap();
    let a = tokenizer.encode("a", false).unwrap()[0];
    guide.accept(a).unwrap();
    assert!(!guide.is_done());
    guide.accept(a).unwrap();
    assert!(guide.is_done());
}

#[test]
fn a_vocabulary_without_a_needed_character_says_where() {
    // All tokens but the first hundred are out of the model's reach, and with them most letters.
    let tokenizer = tiny().tokenizer.clone();
    let z = tokenizer.encode("z", false).unwrap()[0];
    let compiler = octavo::structured::GrammarCompiler::new(tokenizer.clone(), Vec::new(), z as usize);
    let compile = |expression: &str| {
        octavo::sampling::guide::GuideCompiler::compile(
            &compiler,
            &Constraint::Regex(expression.into()),
            Whitespace::Compact,
        )
    };
    let error = compile("z").err().unwrap().to_string();
    assert!(error.contains("no token of the vocabulary may follow after 0 tokens"), "{error}");
    let mut guide = compile("az").unwrap();
    guide.accept(tokenizer.encode("a", false).unwrap()[0]).unwrap();
    let error = guide.fill_mask(&mut vec![0; size_words(z)]).unwrap_err().to_string();
    assert!(error.contains("may follow after 1 tokens"), "{error}");
}

fn size_words(size: u32) -> usize {
    size.div_ceil(32) as usize
}
