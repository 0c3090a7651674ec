//! Structured output. Without a model, tokens are drawn at random from the masks, as a model that knows nothing would, and every
//! output is judged by a library that has nothing to do with ours: with the 515 tokens of the tiny models, a small SentencePiece
//! vocabulary, and SmolLM2's 49,152 where its file is (see `make demo`). And whole requests on a device.
#![cfg(feature = "structured")]

mod guides;
mod hostile;
mod on_a_device;
mod plain;
mod random_schemas;
mod sampler;
mod schemas;
