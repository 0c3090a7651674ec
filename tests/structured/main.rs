//! Structured output without a model: tokens are drawn at random from the masks, as a model that knows nothing would, and
//! every output is judged by a library that has nothing to do with ours. With the 515 tokens of the tiny models, a small
//! SentencePiece vocabulary, and SmolLM2's 49,152 where its file is (see `make demo`).
#![cfg(feature = "structured")]

mod guides;
mod hostile;
mod plain;
mod random_schemas;
mod sampler;
mod schemas;
