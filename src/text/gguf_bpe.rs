//! Byte-level BPE vocabularies out of GGUF metadata, equal to the `tokenizer.json` they were made from.
//!
//! The merges are in the file; how text is cut into words before merging is only named there (`tokenizer.ggml.pre`), with
//! the names of llama.cpp. Patterns are those of the models' own `tokenizer.json` files.
//!
//! An unknown name is an error and not a guess: with the wrong cuts a model still answers, only worse, and nobody finds
//! out why.

use super::files::GgufVocab;
use super::gguf_vocab::{TokenKind, kind};
use crate::error::{Error, Result};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior, Tokenizer};

/// How text is prepared before merging.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Scheme {
    cut: Cut,
    /// Whether characters are composed (Unicode NFC) first.
    composes: bool,
    /// Whether words that are tokens are taken whole, even if no merges lead there.
    whole_words: bool,
}

/// How text is cut into words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    /// By GPT-2's pattern.
    Gpt2,
    /// Each digit (any Unicode N*) by itself, then GPT-2's pattern.
    Digits,
    /// By a pattern of its own.
    Pattern(&'static str),
}

const fn plain(cut: Cut) -> Scheme {
    Scheme { cut, composes: false, whole_words: false }
}

const fn composed(cut: Cut) -> Scheme {
    Scheme { cut, composes: true, whole_words: false }
}

const fn whole(cut: Cut) -> Scheme {
    Scheme { cut, composes: false, whole_words: true }
}

/// Values of `tokenizer.ggml.pre`.
const SCHEMES: [(&str, Scheme); 25] = [
    // Also for files from before the key existed, which are of GPT-2's time.
    ("default", plain(Cut::Gpt2)),
    ("gpt-2", plain(Cut::Gpt2)),
    ("phi-2", plain(Cut::Gpt2)),
    ("gigachat", plain(Cut::Gpt2)),
    ("roberta-bpe", plain(Cut::Gpt2)),
    // GPT-NeoX's vocabulary.
    ("olmo", composed(Cut::Gpt2)),
    ("mpt", composed(Cut::Gpt2)),
    ("smollm", plain(Cut::Digits)),
    ("starcoder", plain(Cut::Digits)),
    ("refact", plain(Cut::Digits)),
    ("codeshell", plain(Cut::Digits)),
    ("llama-bpe", whole(Cut::Pattern(CL100K))),
    ("llama3", whole(Cut::Pattern(CL100K))),
    ("llama-v3", whole(Cut::Pattern(CL100K))),
    ("falcon3", whole(Cut::Pattern(CL100K))),
    // OLMo 2 and Phi-4 have GPT-4's vocabulary, SmolLM3 one made of Llama 3's.
    ("dbrx", plain(Cut::Pattern(CL100K))),
    ("smaug-bpe", plain(Cut::Pattern(CL100K))),
    ("qwen2", composed(Cut::Pattern(QWEN2))),
    ("deepseek-r1-qwen", composed(Cut::Pattern(QWEN2))),
    ("megrez", composed(Cut::Pattern(QWEN2))),
    ("stablelm2", composed(Cut::Pattern(QWEN2))),
    // Mistral NeMo and later.
    ("tekken", whole(Cut::Pattern(TEKKEN))),
    // Phi-4-mini, gpt-oss, Llama 4.
    ("gpt-4o", plain(Cut::Pattern(O200K))),
    ("llama4", plain(Cut::Pattern(O200K))),
    ("kanana2", plain(Cut::Pattern(O200K))),
];

/// GPT-4's pattern, also Llama 3's.
const CL100K: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// As GPT-4's, but digits stand alone.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Words end where small letters turn into capitals; digits stand alone.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// GPT-4o's: as tekken's, but a contraction stays with its word and up to three digits stay together.
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The tokenizer of `vocab`, without beginning and end tokens or tokens that match whole.
///
/// # Errors
/// Unknown pre-tokenizers, by name; merges that do not fit the tokens.
pub(super) fn build(vocab: &GgufVocab) -> Result<Tokenizer> {
    let scheme = scheme(vocab)?;
    let mut tokenizer = Tokenizer::new(model(vocab, scheme)?);
    let level = ByteLevel::new(false, true, !matches!(scheme.cut, Cut::Pattern(_)));
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer(scheme.cut, level)?));
    tokenizer.with_decoder(Some(level));
    if scheme.composes {
        tokenizer.with_normalizer(Some(NormalizerWrapper::from(NFC)));
    }
    Ok(tokenizer)
}

fn scheme(vocab: &GgufVocab) -> Result<Scheme> {
    let name = vocab.pre.as_deref().unwrap_or("default");
    let found = SCHEMES.iter().find(|(known, _)| *known == name).map(|(_, scheme)| *scheme);
    found.ok_or_else(|| {
        let known: Vec<_> = SCHEMES.iter().map(|(known, _)| *known).collect();
        Error::load(format!(
            "the GGUF pre-tokenizer {name:?} is not supported; supported are {}. Use the model's Hugging Face folder with \
             its tokenizer.json, or give prompts as token ids",
            known.join(", ")
        ))
    })
}

fn model(vocab: &GgufVocab, scheme: Scheme) -> Result<BPE> {
    let mut ids = Vocab::with_capacity(vocab.tokens.len());
    for (id, token) in (0..).zip(&vocab.tokens) {
        if kind(vocab, id as usize) != TokenKind::Unused {
            // Of equal texts the first is what encoding gives.
            ids.entry(token.clone()).or_insert(id);
        }
    }
    let merges = vocab.merges.iter().map(|merge| {
        let (left, right) = merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty())?;
        // Spaces are spelled Ġ within tokens, so a second one means damage.
        (!right.contains(' ')).then(|| (left.to_owned(), right.to_owned()))
    });
    let merges: Option<Vec<_>> = merges.collect();
    let merges =
        merges.ok_or_else(|| Error::load("a GGUF merge is not two tokens with a space between; damaged file"))?;
    BPE::builder()
        .vocab_and_merges(ids, merges)
        .ignore_merges(scheme.whole_words)
        .build()
        .map_err(|error| Error::load(format!("the GGUF merges do not fit the tokens: {error}; the file is damaged")))
}

fn pre_tokenizer(cut: Cut, level: ByteLevel) -> Result<PreTokenizerWrapper> {
    let first: PreTokenizerWrapper = match cut {
        Cut::Gpt2 => return Ok(level.into()),
        Cut::Digits => Digits::new(true).into(),
        Cut::Pattern(pattern) => split(pattern)?.into(),
    };
    Ok(Sequence::new(vec![first, level.into()]).into())
}

fn split(pattern: &str) -> Result<Split> {
    Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|error| Error::bug(format!("pre-tokenizer pattern: {error}")))
}

#[cfg(test)]
mod tests {
    use super::super::files::TokenizerFile;
    use super::super::gguf_vocab;
    use super::super::pieces::byte_chars;
    use super::*;

    /// All bytes in order, three merges, then added tokens.
    fn vocab(pre: &str) -> GgufVocab {
        let mut chars: Vec<_> = byte_chars().into_iter().map(|(character, byte)| (byte, character)).collect();
        chars.sort();
        let mut tokens: Vec<String> = chars.iter().map(|(_, character)| character.to_string()).collect();
        let mut token_types = vec![1; 256];
        for (token, kind) in
            [("12", 1), ("123", 1), ("ab", 1), ("abc", 1), ("<eos>", 3), ("<tool>", 4), ("[PAD262]", 5), ("<bos>", 3)]
        {
            tokens.push(token.into());
            token_types.push(kind);
        }
        GgufVocab {
            model: "gpt2".into(),
            pre: Some(pre.into()),
            tokens,
            token_types,
            merges: vec!["1 2".into(), "12 3".into(), "a b".into()],
            bos_token_id: Some(263),
            eos_token_id: Some(260),
            ..GgufVocab::default()
        }
    }

    fn encode(vocab: &GgufVocab, text: &str) -> Vec<u32> {
        super::super::Tokenizer::from_file(&TokenizerFile::Gguf(vocab.clone().into()))
            .unwrap()
            .encode(text, true)
            .unwrap()
    }

    #[test]
    fn schemes_cut_digits_as_their_models_do() {
        for (pre, expected) in
            [("gpt-2", vec![257]), ("smollm", vec![49, 50, 51]), ("qwen2", vec![49, 50, 51]), ("llama-bpe", vec![257])]
        {
            assert_eq!(encode(&vocab(pre), "123"), expected, "{pre}");
        }
        // Llama 3 groups from the left: 123|12.
        assert_eq!(encode(&vocab("llama-bpe"), "12312"), [257, 256]);
    }

    #[test]
    fn only_llama3_takes_words_without_merges_whole() {
        // abc is a token that no merge makes.
        assert_eq!(encode(&vocab("llama-bpe"), "abc"), [259]);
        assert_eq!(encode(&vocab("qwen2"), "abc"), [258, 99]);
    }

    #[test]
    fn only_qwen2_composes_characters() {
        let decomposed = "e\u{301}";
        assert_eq!(encode(&vocab("qwen2"), decomposed), encode(&vocab("qwen2"), "é"));
        assert_eq!(encode(&vocab("llama-bpe"), decomposed), [0x65, 0xCC, 0x81]);
    }

    #[test]
    fn added_tokens_match_whole_and_padding_does_not() {
        assert_eq!(encode(&vocab("gpt-2"), "<tool>b<eos>"), [261, 98, 260]);
        assert_eq!(encode(&vocab("gpt-2"), "[PAD262]").len(), "[PAD262]".len());
        let tokenizer = super::super::Tokenizer::from_file(&TokenizerFile::Gguf(vocab("gpt-2").into())).unwrap();
        assert_eq!(tokenizer.decode(&[261, 262, 260, 98], true), "<tool>b");
        assert_eq!(tokenizer.decode(&[261, 262, 260, 9999], false), "<tool><eos>");
    }

    #[test]
    fn ends_are_added_on_request() {
        let ended = GgufVocab { add_bos_token: true, add_eos_token: true, ..vocab("gpt-2") };
        assert_eq!(encode(&ended, "b"), [263, 98, 260]);
        let tokenizer = super::super::Tokenizer::from_file(&TokenizerFile::Gguf(ended.into())).unwrap();
        assert_eq!(tokenizer.encode("b", false).unwrap(), [98]);
    }

    #[test]
    fn refusals_name_the_reason() {
        let cases = [
            (GgufVocab { model: "bert".into(), ..vocab("gpt-2") }, "of kind \"bert\""),
            (vocab("gpt-9"), "\"gpt-9\" is not supported; supported are default, gpt-2"),
            (GgufVocab { tokens: vec![], ..vocab("gpt-2") }, "no tokens"),
            (GgufVocab { token_types: vec![1], ..vocab("gpt-2") }, "264 tokens but 1 types"),
            (GgufVocab { scores: vec![1.0], ..vocab("gpt-2") }, "264 tokens but 1 scores"),
            (GgufVocab { eos_token_id: Some(264), ..vocab("gpt-2") }, "eos token 264 is outside"),
            (GgufVocab { bos_token_id: None, add_bos_token: true, ..vocab("gpt-2") }, "does not name one"),
            (GgufVocab { merges: vec!["ab".into()], ..vocab("gpt-2") }, "not two tokens"),
            (GgufVocab { merges: vec!["a xyz".into()], ..vocab("gpt-2") }, "do not fit"),
        ];
        for (vocab, expected) in cases {
            let error = gguf_vocab::build(&vocab).expect_err("must be refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
