//! A tokenizer out of GGUF metadata: what all kinds of vocabularies share, checks and the tokens that are matched whole.
//! What makes the kinds differ is in `gguf_bpe` (byte-level BPE) and `gguf_pieces` (SentencePiece).

use super::files::GgufVocab;
use super::{gguf_bpe, gguf_pieces};
use crate::error::{Error, Result};
use std::collections::HashSet;
use tokenizers::{AddedToken, Tokenizer};

/// `tokenizer.ggml.token_type` values with a meaning here; the rest are ordinary.
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// What a token is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TokenKind {
    /// A piece of text that merging makes.
    Normal,
    /// Stands for text that the vocabulary lacks. Special, as in `tokenizer.json` files.
    Unknown,
    /// Special: matched whole, left out of text.
    Control,
    /// Matched whole, but ordinary text.
    UserDefined,
    /// Padding of the embedding matrix: neither matched nor printed.
    Unused,
    /// One byte, for characters that the vocabulary lacks.
    Byte,
}

/// The kind of token `id`. Files without kinds have ordinary tokens only.
pub(super) fn kind(vocab: &GgufVocab, id: usize) -> TokenKind {
    match vocab.token_types.get(id) {
        Some(&UNKNOWN) => TokenKind::Unknown,
        Some(&CONTROL) => TokenKind::Control,
        Some(&USER_DEFINED) => TokenKind::UserDefined,
        Some(&UNUSED) => TokenKind::Unused,
        Some(&BYTE) => TokenKind::Byte,
        _ => TokenKind::Normal,
    }
}

/// The tokenizer of `vocab`, without beginning and end tokens.
///
/// # Errors
/// Other kinds of vocabularies and unknown pre-tokenizers, by name; metadata that contradicts itself.
pub(super) fn build(vocab: &GgufVocab) -> Result<Tokenizer> {
    let build_model = match vocab.model.as_str() {
        "gpt2" => gguf_bpe::build,
        "llama" => gguf_pieces::build_bpe,
        "t5" => gguf_pieces::build_unigram,
        other => {
            return Err(Error::load(format!(
                "the GGUF vocabulary is of kind {other:?}, supported are \"gpt2\" (byte-level BPE), \"llama\" \
                 (SentencePiece BPE) and \"t5\" (unigram); use the model's Hugging Face folder with its tokenizer.json, \
                 or give prompts as token ids"
            )));
        }
    };
    check(vocab)?;
    let mut tokenizer = build_model(vocab)?;
    let added = whole_tokens(vocab, |id| tokenizer.id_to_token(id));
    tokenizer.add_tokens(&added);
    Ok(tokenizer)
}

fn check(vocab: &GgufVocab) -> Result<()> {
    let count = vocab.tokens.len();
    if count == 0 {
        return Err(Error::load("the GGUF vocabulary has no tokens; the file is damaged"));
    }
    for (name, length) in [("types", vocab.token_types.len()), ("scores", vocab.scores.len())] {
        if length != 0 && length != count {
            return Err(Error::load(format!(
                "the GGUF vocabulary has {count} tokens but {length} {name}; the file is damaged"
            )));
        }
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

/// Control and user-defined tokens, which match as a whole wherever their text occurs. `text_of` is the model's own
/// spelling of a token: adding another one would make a new token of it.
fn whole_tokens(vocab: &GgufVocab, text_of: impl Fn(u32) -> Option<String>) -> Vec<AddedToken> {
    // The ends of a sequence are control tokens even in files that forgot to say so.
    let document_ends = [vocab.bos_token_id, vocab.eos_token_id];
    let ends: HashSet<u32> = document_ends.into_iter().flatten().chain(vocab.end_token_ids.iter().copied()).collect();
    let added = (0..vocab.tokens.len() as u32).filter_map(|id| {
        let kind = kind(vocab, id as usize);
        let special = matches!(kind, TokenKind::Control | TokenKind::Unknown) || ends.contains(&id);
        if kind == TokenKind::Unused || !(special || kind == TokenKind::UserDefined) {
            return None;
        }
        let text = text_of(id).filter(|text| !text.is_empty())?;
        let ends_document = vocab.bos_token_id == Some(id) || kind == TokenKind::Unknown || text == "<|endoftext|>";
        let strips = vocab.control_tokens_strip_right && special && !ends_document;
        Some(AddedToken::from(text, special).normalized(false).rstrip(strips))
    });
    added.collect()
}
