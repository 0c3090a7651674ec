//! SentencePiece vocabularies out of GGUF metadata: BPE whose merges follow from the scores (Llama 2, Mistral, Gemma,
//! Phi-3), and unigram models (T5). The file format has no `tokenizer.json`, so this builds what the converters of
//! `transformers` (`convert_slow_tokenizer.py`: `SpmConverter`, `LlamaConverter`, `GemmaConverter`) build from the same
//! scores.
//!
//! Two rules are easy to get wrong. Spaces are U+2581 in pieces, and the space put before a text is put before every
//! stretch between special tokens, as in the files of Llama 2 (`legacy`) and in llama.cpp. And user-defined pieces match
//! before merging, in the text as written, where their U+2581 is a space.

use super::files::GgufVocab;
use super::gguf_vocab::{TokenKind, kind};
use crate::error::{Error, Result};
use std::collections::HashMap;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{Precompiled, Prepend, Replace, Sequence as Normalizers};
use tokenizers::{ModelWrapper, NormalizerWrapper, Tokenizer};

/// How SentencePiece writes a space.
const SPACE: &str = "▁";

/// Longest piece that may come out of merging. Trained ones are at most 16 characters; every piece is cut in every way,
/// so an endless one would take quadratic time.
const MOST_PIECE_BYTES: usize = 256;

/// A tokenizer of BPE pieces, without beginning and end tokens or tokens that match whole.
///
/// # Errors
/// Pieces that are absurdly long, scores that are no numbers.
pub(super) fn build_bpe(vocab: &GgufVocab) -> Result<Tokenizer> {
    let merges = merges(vocab)?;
    let mut ids = Vocab::with_capacity(vocab.tokens.len());
    for (id, text) in texts(vocab) {
        // Of equal texts the first is what encoding gives.
        ids.entry(text).or_insert(id);
    }
    let mut model = BPE::builder().vocab_and_merges(ids, merges).fuse_unk(true).byte_fallback(has_bytes(vocab));
    if let Some(unknown) = unknown(vocab) {
        model = model.unk_token(vocab.tokens[unknown].clone());
    }
    let model = model.build().map_err(|error| Error::bug(format!("merges made of the vocabulary's own: {error}")))?;
    assemble(model.into(), vocab)
}

/// A tokenizer that takes the likeliest sequence of pieces, without beginning and end tokens or tokens that match whole.
///
/// # Errors
/// No scores, no token for unknown characters, a damaged character map.
pub(super) fn build_unigram(vocab: &GgufVocab) -> Result<Tokenizer> {
    if vocab.scores.is_empty() {
        return Err(Error::load(
            "a GGUF unigram vocabulary needs scores and this one has none; convert the model again",
        ));
    }
    let pieces: Vec<(String, f64)> = vocab
        .tokens
        .iter()
        .enumerate()
        .map(|(id, token)| (spelled(vocab, id, token), f64::from(vocab.scores[id])))
        .collect();
    let model = Unigram::from(pieces, unknown(vocab), has_bytes(vocab))
        .map_err(|error| Error::load(format!("the GGUF unigram vocabulary cannot be used: {error}")))?;
    assemble(model.into(), vocab)
}

fn assemble(model: ModelWrapper, vocab: &GgufVocab) -> Result<Tokenizer> {
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(Some(normalizer(vocab)?));
    let spaces = replace(SPACE.to_owned().into(), " ")?;
    let mut decoders: Vec<DecoderWrapper> = vec![spaces.into(), ByteFallback::new().into(), Fuse::new().into()];
    if vocab.add_space_prefix {
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    tokenizer.with_decoder(Some(Decoders::new(decoders)));
    Ok(tokenizer)
}

/// In SentencePiece's order: rewrite characters, trim, put a space first, spell spaces.
fn normalizer(vocab: &GgufVocab) -> Result<NormalizerWrapper> {
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if !vocab.precompiled_charsmap.is_empty() {
        let map = Precompiled::from(&vocab.precompiled_charsmap)
            .map_err(|error| Error::load(format!("the GGUF character map cannot be read: {error}; damaged file")))?;
        steps.push(map.into());
    }
    if vocab.remove_extra_whitespaces {
        // Spaces only: newlines and tabs are characters like any other.
        steps.push(replace(ReplacePattern::Regex(r"\A +| +\z".into()), "")?.into());
        steps.push(replace(ReplacePattern::Regex(" {2,}".into()), " ")?.into());
    }
    if vocab.add_space_prefix {
        steps.push(Prepend::new(SPACE.into()).into());
    }
    steps.push(replace(" ".into(), SPACE)?.into());
    Ok(Normalizers::new(steps).into())
}

fn replace(pattern: ReplacePattern, content: &str) -> Result<Replace> {
    Replace::new(pattern, content).map_err(|error| Error::bug(format!("a pattern of the normalizer: {error}")))
}

/// Ids and spellings of all tokens that are text or stand for it.
fn texts(vocab: &GgufVocab) -> impl Iterator<Item = (u32, String)> {
    let used = (0..).zip(&vocab.tokens).filter(|(id, _)| kind(vocab, *id as usize) != TokenKind::Unused);
    used.map(|(id, token)| (id, spelled(vocab, id as usize, token)))
}

/// A token as it is matched. Converters write user-defined pieces with spaces; older ones left U+2581.
fn spelled(vocab: &GgufVocab, id: usize, token: &str) -> String {
    match kind(vocab, id) {
        TokenKind::UserDefined => token.replace(SPACE, " "),
        _ => token.to_owned(),
    }
}

/// All ways to join two normal pieces to a third, the best score of the result first, and of the ways to the same piece
/// that with the longest left part (`generate_merges` of transformers). SentencePiece itself takes, of ways to the same
/// piece, the leftmost in the text; it matters only where two ways overlap, as in aa-a and a-aa.
fn merges(vocab: &GgufVocab) -> Result<Merges> {
    let mut pieces: HashMap<&str, u32> = HashMap::with_capacity(vocab.tokens.len());
    for (id, token) in (0u32..).zip(&vocab.tokens) {
        if kind(vocab, id as usize) == TokenKind::Normal {
            pieces.entry(token).or_insert(id);
        }
    }
    let mut joins: Vec<Join> = Vec::new();
    for (id, token) in (0u32..).zip(&vocab.tokens) {
        if pieces.get(token.as_str()) != Some(&id) {
            continue;
        }
        if token.len() > MOST_PIECE_BYTES {
            return Err(Error::load(format!(
                "token {id} of the GGUF vocabulary has {} bytes, more than {MOST_PIECE_BYTES}; the file is damaged",
                token.len()
            )));
        }
        // Without scores, pieces are in the order in which training found them, which is that of their scores.
        let score = vocab.scores.get(id as usize).copied().unwrap_or(-(id as f32));
        if score.is_nan() {
            return Err(Error::load(format!("the score of GGUF token {id} is no number; the file is damaged")));
        }
        for (left_chars, (cut, _)) in token.char_indices().enumerate().skip(1) {
            let (left, right) = token.split_at(cut);
            if let (Some(&left), Some(&right)) = (pieces.get(left), pieces.get(right)) {
                // Adding zero makes one of the two zeros.
                joins.push(Join { score: score + 0.0, left_chars, id, left, right });
            }
        }
    }
    joins.sort_unstable_by(|a, b| {
        b.score.total_cmp(&a.score).then(b.left_chars.cmp(&a.left_chars)).then(a.id.cmp(&b.id))
    });
    let text = |id: u32| vocab.tokens[id as usize].clone();
    Ok(joins.into_iter().map(|join| (text(join.left), text(join.right))).collect())
}

/// Two pieces that make a third.
struct Join {
    /// Of the result.
    score: f32,
    left_chars: usize,
    id: u32,
    left: u32,
    right: u32,
}

fn has_bytes(vocab: &GgufVocab) -> bool {
    (0..vocab.tokens.len()).any(|id| kind(vocab, id) == TokenKind::Byte)
}

/// The token for characters that nothing else expresses.
fn unknown(vocab: &GgufVocab) -> Option<usize> {
    let named = vocab.unknown_token_id.map(|id| id as usize).filter(|id| *id < vocab.tokens.len());
    named.or_else(|| (0..vocab.tokens.len()).find(|id| kind(vocab, *id) == TokenKind::Unknown))
}
