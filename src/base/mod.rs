//! Ground floor: ids, element types and integer helpers. Depends on nothing else in the crate.

mod dtype;
mod ids;
pub mod rng;
mod shape;

pub use dtype::DType;
pub use ids::{BlockId, Epoch, HostBlockId, RequestId, SeqId, SlotId, TokenId};
pub use shape::{align_up, ceil_div};

/// Tokens in one KV block. An octavo is a sheet folded into sixteen pages.
pub const BLOCK_TOKENS: usize = 16;

/// KV positions in one attention chunk. Softmax partials are formed per chunk, counted from position 0, and merged in
/// chunk order, so that prefill, chunked prefill and decode give the same bits for the same query.
pub const KV_CHUNK: usize = 256;
