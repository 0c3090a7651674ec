//! What happens to named blocks, as values, for routers that follow which worker caches what. The fields are those of
//! vLLM's KV events; the wire format comes with the server.

use super::BlockHash;
use crate::base::TokenId;

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    /// In device memory.
    Gpu,
    /// In host memory.
    Cpu,
}

/// A change of what can be found by its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// A block got its name.
    BlockStored {
        /// Its name.
        hash: BlockHash,
        /// The block before it; `None` in front.
        parent: Option<BlockHash>,
        /// Its tokens.
        token_ids: Vec<TokenId>,
        /// Where it lies.
        medium: Medium,
    },
    /// A block lost its name there.
    BlockRemoved {
        /// Its name.
        hash: BlockHash,
        /// Where it lay.
        medium: Medium,
    },
    /// All names are gone, everywhere.
    AllBlocksCleared,
}
