//! Who holds which KV block, and which blocks can be found again by their tokens. Book-keeping only: the memory
//! itself belongs to the runner.

mod block_hash;
mod block_list;
mod block_pool;
mod prefix_index;

pub use block_hash::{BlockHash, HashChain};
pub use block_pool::{BlockCounts, BlockPool};
pub use prefix_index::{BlockKey, PrefixIndex};
