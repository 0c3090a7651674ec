//! From text to tokens and back: tokenizers, streaming detokenization, chat templates. Pure: no files, no device.
//!
//! Loading hands over what a model's files say ([`files`]); a [`Tokenizer`] encodes prompts, a [`Detokenizer`] turns one
//! request's tokens into text as they arrive, and a [`ChatTemplate`] renders conversations.

pub mod chat;
pub mod detok;
pub mod files;
mod gguf_bpe;
mod gguf_pieces;
mod gguf_vocab;
mod jinja;
mod pieces;
mod python_values;
mod strftime;
pub mod tokenizer;

pub use chat::{ChatMessage, ChatTemplate, RenderOptions};
pub use detok::Detokenizer;
pub use files::{GgufVocab, TextFiles, TokenizerFile};
pub use tokenizer::Tokenizer;
