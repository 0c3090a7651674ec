//! Vocabularies of GGUF files against the ids that transformers, tokenizers and sentencepiece give
//! (tests/golden/text, made by the script there).

use octavo::model::text_files;
use octavo::text::{ChatTemplate, Detokenizer, GgufVocab, RenderOptions, TextFiles, Tokenizer, TokenizerFile};
use octavo::weights::FileBytes;
use octavo::weights::gguf::GgufFile;
use serde::Deserialize;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    decoded: String,
    decoded_skip_special: String,
    /// Only where sentencepiece differs.
    sentencepiece_ids: Option<Vec<u32>>,
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/text").join(name)
}

fn json<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&std::fs::read(golden(name)).unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn files(name: &str) -> TextFiles {
    let file = GgufFile::new(FileBytes::map(&golden(name)).unwrap()).unwrap();
    text_files::from_gguf(file.metadata()).unwrap()
}

fn vocab(name: &str) -> GgufVocab {
    match files(name).tokenizer {
        Some(TokenizerFile::Gguf(vocab)) => *vocab,
        _ => panic!("{name} has no vocabulary"),
    }
}

fn tokenizer(vocab: &GgufVocab) -> Tokenizer {
    Tokenizer::from_file(&TokenizerFile::Gguf(vocab.clone().into())).unwrap()
}

fn stream(mut detokenizer: Detokenizer, ids: &[u32]) -> String {
    let mut text: String = ids.iter().map(|id| detokenizer.push(*id).to_owned()).collect();
    text.push_str(detokenizer.finish());
    text
}

/// A text with U+2581 itself. transformers takes two of them for two spaces, but a GGUF file spells that token with
/// spaces, so that it matches spaces alone, here as in llama.cpp.
const SPELLED_SPACES: &str = "▁▁ ▁";

/// Ids, text, and the same text in pieces and as the continuation of any beginning.
fn check(style: &str, tokenizer: &Tokenizer) -> Vec<Case> {
    let mut cases: Vec<Case> = json(&format!("{style}.json"));
    if style == "gemma-style" {
        cases.retain(|case| case.text != SPELLED_SPACES);
    }
    assert!(cases.len() > 70, "{}", cases.len());
    for case in &cases {
        let ids = tokenizer.encode(&case.text, false).unwrap();
        assert_eq!(ids, case.ids, "{style}: {:?}", case.text);
        for (skip_special, expected) in [(false, &case.decoded), (true, &case.decoded_skip_special)] {
            assert_eq!(&tokenizer.decode(&ids, skip_special), expected, "{style}: {:?}", case.text);
            assert_eq!(&stream(Detokenizer::new(tokenizer.clone(), skip_special), &ids), expected, "{style}");
            for (before, after) in (0..=ids.len()).map(|cut| ids.split_at(cut)) {
                let before_text = tokenizer.decode(before, skip_special);
                // A beginning that ends within a character has no text that the whole text begins with.
                if before_text.ends_with('\u{FFFD}') {
                    continue;
                }
                let detokenizer = Detokenizer::after(tokenizer.clone(), before, skip_special);
                assert_eq!(before_text + &stream(detokenizer, after), *expected, "{style}: {before:?}, {after:?}");
            }
        }
    }
    cases
}

#[test]
fn llama_style_pieces_are_those_of_transformers() {
    let vocab = vocab("llama-style.gguf");
    assert!(vocab.add_bos_token && !vocab.add_eos_token && vocab.add_space_prefix, "the defaults of the kind");
    let tokenizer = tokenizer(&vocab);
    let cases = check("llama-style", &tokenizer);
    // The beginning of a text is put before the space; an empty text gets no space.
    assert_eq!(tokenizer.encode("", true).unwrap(), [1]);
    let the = tokenizer.encode("the", false).unwrap();
    assert_eq!(tokenizer.encode("the", true).unwrap(), [&[1], &the[..]].concat());
    // sentencepiece puts a space before whole texts only, and takes U+2581 for one: known, and no other differences.
    let differing: Vec<_> = cases.iter().filter(|case| case.sentencepiece_ids.is_some()).map(|c| &c.text).collect();
    assert_eq!(differing, ["text<tool>more <tool> text"]);
    // Only the first space is dropped, and only at the very beginning.
    let leaf = tokenizer.token_to_id("▁leaf").expect("a piece");
    assert_eq!(tokenizer.decode(&[leaf, leaf], true), "leaf leaf");
    assert_eq!(tokenizer.decode(&[1, leaf], false), "<s> leaf");
    assert_eq!(tokenizer.decode(&[1, leaf], true), "leaf");
    assert_eq!(stream(Detokenizer::after(tokenizer.clone(), &[1, leaf], true), &[leaf]), " leaf");
}

#[test]
fn gemma_style_pieces_are_those_of_transformers() {
    let vocab = vocab("gemma-style.gguf");
    assert!(vocab.add_bos_token && !vocab.add_space_prefix);
    assert_eq!(vocab.end_token_ids.len(), 2, "the end of the text, and by its name the end of a turn");
    let tokenizer = tokenizer(&vocab);
    let cases = check("gemma-style", &tokenizer);
    let differing: Vec<_> = cases.iter().filter(|case| case.sentencepiece_ids.is_some()).map(|c| &c.text).collect();
    assert!(differing.is_empty(), "{differing:?}");
    let spelled = tokenizer.encode(SPELLED_SPACES, false).unwrap();
    assert_eq!(tokenizer.decode(&spelled, false), "    ");
    // Nothing is lost: every text without U+2581, which is how a space is spelled, comes back.
    for case in cases.iter().filter(|case| !case.text.contains('▁')) {
        assert_eq!(tokenizer.decode(&case.ids, false), case.text);
    }
    // Older converters left U+2581 in the runs of spaces that match before merging.
    let mut older = vocab.clone();
    for (token, kind) in older.tokens.iter_mut().zip(&vocab.token_types) {
        if *kind == 4 {
            *token = token.replace(' ', "▁");
        }
    }
    assert_ne!(older.tokens, vocab.tokens);
    check("gemma-style", &self::tokenizer(&older));
}

#[test]
fn unigram_pieces_are_those_of_transformers() {
    let vocab = vocab("unigram.gguf");
    assert!(vocab.precompiled_charsmap.len() > 100_000 && vocab.remove_extra_whitespaces && vocab.add_eos_token);
    let tokenizer = tokenizer(&vocab);
    let cases = check("unigram", &tokenizer);
    let differing: Vec<_> = cases.iter().filter(|case| case.sentencepiece_ids.is_some()).map(|c| &c.text).collect();
    assert!(differing.is_empty(), "{differing:?}");
    assert_eq!(*tokenizer.encode("leaf", true).unwrap().last().unwrap(), 1);
}

#[test]
fn each_way_of_cutting_gives_the_ids_of_its_models() {
    #[derive(Deserialize)]
    struct Golden {
        strings: Vec<String>,
        ids: std::collections::BTreeMap<String, Vec<Vec<u32>>>,
    }
    let golden: Golden = json("byte-level.json");
    assert_eq!(golden.ids.len(), 8);
    let vocab = vocab("byte-level.gguf");
    for (pre, lists) in &golden.ids {
        let tokenizer = tokenizer(&GgufVocab { pre: Some(pre.clone()), ..vocab.clone() });
        for (text, ids) in golden.strings.iter().zip(lists) {
            assert_eq!(&tokenizer.encode(text, false).unwrap(), ids, "{pre}: {text:?}");
            // Composing characters is the one thing that cannot be undone.
            if !["olmo", "qwen2"].contains(&pre.as_str()) {
                assert_eq!(&tokenizer.decode(ids, false), text, "{pre}");
            }
        }
    }
    // The strings tell the ways apart.
    for (left, left_ids) in &golden.ids {
        for (right, right_ids) in &golden.ids {
            assert!(left == right || left_ids != right_ids, "no string tells {left} from {right}");
        }
    }
}

#[test]
fn every_pair_of_pieces_streams_as_it_decodes() {
    for style in ["llama-style", "gemma-style"] {
        let tokenizer = tokenizer(&vocab(&format!("{style}.gguf")));
        let count = tokenizer.vocab_size() as u32;
        for left in 0..count {
            for right in (0..count).filter(|right| *right < 300 || (left + right) % 7 == 0) {
                let ids = [left, right];
                let streamed = stream(Detokenizer::new(tokenizer.clone(), true), &ids);
                assert_eq!(streamed, tokenizer.decode(&ids, true), "{style}: {ids:?}");
            }
        }
    }
}

#[test]
fn control_tokens_of_phi3_swallow_spaces() {
    let phi3 = GgufVocab { control_tokens_strip_right: true, ..vocab("llama-style.gguf") };
    let (tokenizer, plain) = (tokenizer(&phi3), self::tokenizer(&vocab("llama-style.gguf")));
    let encode = |text: &str| tokenizer.encode(text, false).unwrap();
    assert_eq!(encode("<|user|> \n\t the"), encode("<|user|>the"));
    assert_ne!(plain.encode("<|user|> \n\t the", false).unwrap(), plain.encode("<|user|>the", false).unwrap());
    // The ends of a document do not, nor do tokens that are text.
    assert_eq!(encode("<s> the"), plain.encode("<s> the", false).unwrap());
    assert_eq!(encode("<tool> the"), plain.encode("<tool> the", false).unwrap());
}

#[test]
fn named_templates_come_from_gguf() {
    let files = files("byte-level.gguf");
    let template = ChatTemplate::from_files(&files).unwrap().unwrap();
    assert_eq!(template.names().collect::<Vec<_>>(), ["default", "tool_use"]);
    let tools = Some(serde_json::json!([{"name": "fold"}]));
    let text = template.render(&[], &RenderOptions { tools, ..RenderOptions::default() }).unwrap();
    assert_eq!(text, r#"[{"name": "fold"}]<|end|>"#);
}

#[test]
fn damaged_pieces_are_refused_by_name() {
    let good = vocab("llama-style.gguf");
    let with = |change: fn(&mut GgufVocab)| {
        let mut vocab = good.clone();
        change(&mut vocab);
        Tokenizer::from_file(&TokenizerFile::Gguf(vocab.into())).err().map(|error| error.to_string())
    };
    type Change = fn(&mut GgufVocab);
    let cases: [(Change, &str); 6] = [
        (|vocab| vocab.scores[300] = f32::NAN, "score of GGUF token 300"),
        (|vocab| vocab.scores.truncate(5), "tokens but 5 scores"),
        (|vocab| vocab.tokens[400] = "x".repeat(1000), "token 400 of the GGUF vocabulary has 1000 bytes"),
        (|vocab| (vocab.model, vocab.scores) = ("t5".into(), vec![]), "needs scores"),
        (|vocab| (vocab.model, vocab.precompiled_charsmap) = ("t5".into(), vec![1, 2, 3]), "character map"),
        (|vocab| vocab.model = "plamo2".into(), "of kind \"plamo2\", supported are"),
    ];
    for (change, expected) in cases {
        let error = with(change).expect(expected);
        assert!(error.contains(expected), "{error}");
    }
    // Odd, but harmless: no scores, no bytes, no kinds, no unknown token, twice the same.
    let odd: [Change; 5] = [
        |vocab| vocab.scores.clear(),
        |vocab| vocab.token_types.iter_mut().filter(|kind| **kind == 6).for_each(|kind| *kind = 5),
        |vocab| vocab.token_types.clear(),
        |vocab| (vocab.unknown_token_id, vocab.token_types[0]) = (Some(u32::MAX), 1),
        |vocab| vocab.tokens[500] = vocab.tokens[501].clone(),
    ];
    for change in odd {
        assert_eq!(with(change), None);
    }
}
