//! Byte-level BPE vocabularies out of GGUF metadata, equal to the `tokenizer.json` they were made from.

use super::files::GgufVocab;
use crate::error::{Error, Result};
use std::collections::HashSet;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, NormalizerWrapper, SplitDelimiterBehavior, Tokenizer};

/// `tokenizer.ggml.token_type` values with a meaning here; the rest are ordinary.
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// How text is cut into words before merging.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scheme {
    /// GPT-2's pattern.
    Gpt2,
    /// Each digit (any Unicode N*) by itself, then GPT-2's pattern.
    Digits,
    /// Llama 3: up to three digits together, words that are tokens are never merged.
    Llama3,
    /// Qwen2: single digits, text normalized to NFC.
    Qwen2,
}

/// Values of `tokenizer.ggml.pre` by scheme. Names are llama.cpp's.
const SCHEMES: [(&str, Scheme); 12] = [
    ("default", Scheme::Gpt2),
    ("gpt-2", Scheme::Gpt2),
    ("phi-2", Scheme::Gpt2),
    ("olmo", Scheme::Gpt2),
    ("smollm", Scheme::Digits),
    ("starcoder", Scheme::Digits),
    ("refact", Scheme::Digits),
    ("llama-bpe", Scheme::Llama3),
    ("llama3", Scheme::Llama3),
    ("llama-v3", Scheme::Llama3),
    ("qwen2", Scheme::Qwen2),
    ("deepseek-r1-qwen", Scheme::Qwen2),
];

/// Patterns as in the `tokenizer.json` of Llama 3 and Qwen2; they differ in the digits alone.
const LLAMA3_PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN2_PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The tokenizer of `vocab`, without beginning and end tokens.
///
/// # Errors
/// Other kinds of vocabularies and unknown pre-tokenizers, by name; metadata that contradicts itself.
pub(super) fn build(vocab: &GgufVocab) -> Result<Tokenizer> {
    let scheme = scheme(vocab)?;
    check(vocab)?;
    let mut tokenizer = Tokenizer::new(model(vocab, scheme)?);
    let level = ByteLevel::new(false, true, matches!(scheme, Scheme::Gpt2 | Scheme::Digits));
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer(scheme, level)?));
    tokenizer.with_decoder(Some(level));
    if scheme == Scheme::Qwen2 {
        tokenizer.with_normalizer(Some(NormalizerWrapper::from(NFC)));
    }
    add_whole_tokens(&mut tokenizer, vocab);
    Ok(tokenizer)
}

fn scheme(vocab: &GgufVocab) -> Result<Scheme> {
    if vocab.model != "gpt2" {
        let kind = if vocab.model == "llama" { " (SentencePiece)" } else { "" };
        return Err(Error::load(format!(
            "the GGUF vocabulary is of kind {:?}{kind}, supported is \"gpt2\" (byte-level BPE); use the model's Hugging \
             Face folder with its tokenizer.json, or give prompts as token ids",
            vocab.model
        )));
    }
    // Files from before this key existed are of GPT-2's time.
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

fn check(vocab: &GgufVocab) -> Result<()> {
    let count = vocab.tokens.len();
    if count == 0 {
        return Err(Error::load("the GGUF vocabulary has no tokens; the file is damaged"));
    }
    if !vocab.token_types.is_empty() && vocab.token_types.len() != count {
        let types = vocab.token_types.len();
        return Err(Error::load(format!(
            "the GGUF vocabulary has {count} tokens but {types} types; the file is damaged"
        )));
    }
    for (name, id, added) in
        [("bos", vocab.bos_token_id, vocab.add_bos_token), ("eos", vocab.eos_token_id, vocab.add_eos_token)]
    {
        match id {
            Some(id) if id as usize >= count => {
                return Err(Error::load(format!("the GGUF {name} token {id} is outside the vocabulary of {count}")));
            }
            None if added => {
                return Err(Error::load(format!("the GGUF file wants its {name} token added but does not name one")));
            }
            _ => {}
        }
    }
    Ok(())
}

fn model(vocab: &GgufVocab, scheme: Scheme) -> Result<BPE> {
    let mut ids = Vocab::with_capacity(vocab.tokens.len());
    for (id, token) in (0..).zip(&vocab.tokens) {
        // Padding of the embedding matrix is not text: it is neither matched nor printed.
        if vocab.token_types.get(id as usize) != Some(&UNUSED) {
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
        .ignore_merges(scheme == Scheme::Llama3)
        .build()
        .map_err(|error| Error::load(format!("the GGUF merges do not fit the tokens: {error}; the file is damaged")))
}

fn pre_tokenizer(scheme: Scheme, level: ByteLevel) -> Result<PreTokenizerWrapper> {
    let first: PreTokenizerWrapper = match scheme {
        Scheme::Gpt2 => return Ok(level.into()),
        Scheme::Digits => Digits::new(true).into(),
        Scheme::Llama3 => split(LLAMA3_PATTERN)?.into(),
        Scheme::Qwen2 => split(QWEN2_PATTERN)?.into(),
    };
    Ok(Sequence::new(vec![first, level.into()]).into())
}

fn split(pattern: &str) -> Result<Split> {
    Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|error| Error::bug(format!("pre-tokenizer pattern: {error}")))
}

/// Makes control and user-defined tokens match as a whole wherever their text occurs.
fn add_whole_tokens(tokenizer: &mut Tokenizer, vocab: &GgufVocab) {
    let kind = |id: usize| vocab.token_types.get(id).copied().unwrap_or(0);
    // The ends of a sequence are control tokens even in files that forgot to say so.
    let ends: HashSet<usize> =
        [vocab.bos_token_id, vocab.eos_token_id].into_iter().flatten().map(|id| id as usize).collect();
    let tokens = vocab.tokens.iter().enumerate().filter(|(_, token)| !token.is_empty());
    let added = tokens.filter_map(|(id, token)| match kind(id) {
        CONTROL => Some(AddedToken::from(token.clone(), true)),
        UNUSED => None,
        _ if ends.contains(&id) => Some(AddedToken::from(token.clone(), true)),
        USER_DEFINED => Some(AddedToken::from(token.clone(), false).normalized(false)),
        _ => None,
    });
    let added: Vec<_> = added.collect();
    tokenizer.add_tokens(&added);
}

#[cfg(test)]
mod tests {
    use super::super::files::TokenizerFile;
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
        super::super::Tokenizer::from_file(&TokenizerFile::Gguf(vocab.clone())).unwrap().encode(text, true).unwrap()
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
        let tokenizer = super::super::Tokenizer::from_file(&TokenizerFile::Gguf(vocab("gpt-2"))).unwrap();
        assert_eq!(tokenizer.decode(&[261, 262, 260, 98], true), "<tool>b");
        assert_eq!(tokenizer.decode(&[261, 262, 260, 9999], false), "<tool><eos>");
    }

    #[test]
    fn ends_are_added_on_request() {
        let ended = GgufVocab { add_bos_token: true, add_eos_token: true, ..vocab("gpt-2") };
        assert_eq!(encode(&ended, "b"), [263, 98, 260]);
        let tokenizer = super::super::Tokenizer::from_file(&TokenizerFile::Gguf(ended)).unwrap();
        assert_eq!(tokenizer.encode("b", false).unwrap(), [98]);
    }

    #[test]
    fn refusals_name_the_reason() {
        let cases = [
            (GgufVocab { model: "llama".into(), ..vocab("gpt-2") }, "\"llama\" (SentencePiece)"),
            (vocab("gpt-9"), "\"gpt-9\" is not supported; supported are default, gpt-2"),
            (GgufVocab { tokens: vec![], ..vocab("gpt-2") }, "no tokens"),
            (GgufVocab { token_types: vec![1], ..vocab("gpt-2") }, "264 tokens but 1 types"),
            (GgufVocab { eos_token_id: Some(264), ..vocab("gpt-2") }, "eos token 264 is outside"),
            (GgufVocab { bos_token_id: None, add_bos_token: true, ..vocab("gpt-2") }, "does not name one"),
            (GgufVocab { merges: vec!["ab".into()], ..vocab("gpt-2") }, "not two tokens"),
            (GgufVocab { merges: vec!["a xyz".into()], ..vocab("gpt-2") }, "do not fit"),
        ];
        for (vocab, expected) in cases {
            let error = build(&vocab).expect_err("must be refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
