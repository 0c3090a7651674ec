//! Who holds which KV block, and which blocks can be found again by their tokens. Book-keeping only: the memory
//! itself belongs to the runner.

mod block_hash;
mod block_list;
mod block_pool;
mod host_store;
mod kv_event;
mod prefix_index;

pub use block_hash::{BlockHash, HashChain};
pub use block_pool::{BlockCounts, BlockPool, Taken};
pub use host_store::{HostCounts, HostStore};
pub use kv_event::{KvEvent, Medium};
pub use prefix_index::{BlockKey, BlockName, PrefixIndex};
