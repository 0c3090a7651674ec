//! A tokenizer's vocabulary as llguidance walks it: a trie of the true bytes of all tokens.
//!
//! Special tokens are no text. They stand under a marker byte that no text contains, so a grammar reaches them by name
//! only. Ids without bytes, and ids that the model's output does not have, are never allowed.

use crate::base::TokenId;
use crate::error::{Error, Result};
use crate::text::Tokenizer;
use llguidance::ParserFactory;
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use std::sync::Arc;

/// A trie with what all guides of a model share.
pub(super) struct Vocabulary {
    pub(super) factory: ParserFactory,
    /// Bit i % 32 of word i / 32 for each token i that may come at all.
    pub(super) known: Vec<u32>,
    pub(super) end_tokens: Vec<TokenId>,
}

impl Vocabulary {
    /// The vocabulary of `tokenizer`, as far as the model's output, of `vocab_size` values, reaches. Without an end token,
    /// an output ends where nothing else may follow, or by its length.
    ///
    /// # Errors
    /// The library cannot take it, which is a defect.
    pub(super) fn new(tokenizer: &Tokenizer, end_tokens: &[TokenId], vocab_size: usize) -> Result<Self> {
        let end_tokens: Vec<_> = end_tokens.iter().copied().filter(|id| (*id as usize) < vocab_size).collect();
        let size =
            end_tokens.iter().map(|id| *id as usize + 1).fold(tokenizer.vocab_size(), usize::max).min(vocab_size);
        let mut words: Vec<_> = (0..size as TokenId).map(|id| word(tokenizer, id, end_tokens.contains(&id))).collect();
        let mut known = vec![0; size.div_ceil(32)];
        for id in (0..size).filter(|id| !words[*id].is_empty()) {
            known[id / 32] |= 1 << (id % 32);
        }
        // The library wants an end token. This one is beyond all masks.
        let library_ends = if end_tokens.is_empty() { vec![size as TokenId] } else { end_tokens.clone() };
        words.push([&[MARKER], b"<end>".as_slice()].concat());
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, library_ends[0]), &words);
        let trie = trie.with_eos_tokens(&library_ends);
        let environment: TokEnv = Arc::new(Environment { trie });
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
            .map_err(|error| Error::bug(format!("the vocabulary cannot be sliced: {error}")))?;
        factory.quiet();
        *factory.limits_mut() = super::limits::parser_limits();
        Ok(Self { factory, known, end_tokens })
    }
}

const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// What stands in the trie for `id`.
fn word(tokenizer: &Tokenizer, id: TokenId, is_end: bool) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    if is_end || tokenizer.is_special(id) {
        let name = tokenizer.id_to_token(id).unwrap_or_default();
        return [&[MARKER], name.as_bytes()].concat();
    }
    // No UTF-8 text has the marker, so nothing is lost with a token that has.
    if bytes.contains(&MARKER) { Vec::new() } else { bytes.to_vec() }
}

struct Environment {
    trie: TokTrie,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(text)
    }

    /// With this, a mask holds all tokens that the grammar allows and not only those that the tokenizer would choose, so
    /// a token that is forced is forced whichever way the text before it was cut.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
