//! What a model's files say about text: the hand-over from loading (`weights`, `model`) to tokenizing (`text`).

use crate::base::TokenId;
use std::collections::BTreeMap;

/// Everything needed to build a tokenizer and to render chats.
#[derive(Clone, Debug, Default)]
pub struct TextFiles {
    /// The vocabulary; `None` if the model came without one, which is fine for prompts given as token ids.
    pub tokenizer: Option<TokenizerFile>,
    /// Jinja source of the chat template, the default one where several are named.
    pub chat_template: Option<String>,
    /// Sources of further templates by name, such as `tool_use`. The default one is not among them.
    pub named_templates: BTreeMap<String, String>,
    /// Text of the beginning-of-sequence token, for templates.
    pub bos_token: Option<String>,
    /// Text of the end-of-sequence token, for templates.
    pub eos_token: Option<String>,
}

/// A vocabulary as found.
#[derive(Clone, Debug)]
pub enum TokenizerFile {
    /// Bytes of a Hugging Face `tokenizer.json`.
    Json(Vec<u8>),
    /// The `tokenizer.ggml.*` metadata of a GGUF file.
    Gguf(Box<GgufVocab>),
}

/// Vocabulary metadata of a GGUF file, unchecked beyond its types.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: `gpt2` is byte-level BPE, `llama` SentencePiece's BPE, `t5` its unigram model.
    pub model: String,
    /// `tokenizer.ggml.pre`: which pre-tokenizer.
    pub pre: Option<String>,
    /// Text of each token id.
    pub tokens: Vec<String>,
    /// Kind of each token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// Score of each token (SentencePiece); may be empty.
    pub scores: Vec<f32>,
    /// BPE merges, `left right`, best first.
    pub merges: Vec<String>,
    /// Beginning of sequence.
    pub bos_token_id: Option<TokenId>,
    /// End of sequence, added by `add_eos_token`.
    pub eos_token_id: Option<TokenId>,
    /// Unknown token.
    pub unknown_token_id: Option<TokenId>,
    /// Padding.
    pub padding_token_id: Option<TokenId>,
    /// Whether encoding puts the beginning token first.
    pub add_bos_token: bool,
    /// Whether encoding puts the end token last.
    pub add_eos_token: bool,
    /// Whether SentencePiece encoding puts a space first.
    pub add_space_prefix: bool,
    /// Whether SentencePiece encoding trims spaces and makes one of several.
    pub remove_extra_whitespaces: bool,
    /// Compiled character rewriting of SentencePiece; empty for none.
    pub precompiled_charsmap: Vec<u8>,
    /// Whether control tokens other than the ends of a document swallow the spaces after them, as Phi-3's do.
    pub control_tokens_strip_right: bool,
    /// Tokens that end an output: of the sequence, the turn, the message. Without repeats, all within the vocabulary.
    pub end_token_ids: Vec<TokenId>,
}
