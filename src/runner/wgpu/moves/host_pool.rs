//! Host memory for KV blocks. Its address space is reserved when the model is loaded and its pages are taken when blocks
//! are first used, lowest numbers first; it never grows beyond that.

use crate::base::HostBlockId;
use crate::error::{Error, Result};

/// See the module.
pub(super) struct HostPool {
    bytes: Vec<u8>,
    block_bytes: usize,
    block_count: usize,
}

impl HostPool {
    /// Room for as many blocks of `block_bytes` as `bytes` hold.
    ///
    /// # Errors
    /// The host has not so much memory.
    pub(super) fn new(bytes: u64, block_bytes: u64) -> Result<Self> {
        let block_count = (bytes / block_bytes.max(1)).min(u64::from(u32::MAX));
        let mut memory = Vec::new();
        usize::try_from(block_count * block_bytes)
            .ok()
            .and_then(|size| memory.try_reserve_exact(size).ok())
            .ok_or_else(|| {
                Error::memory(format!(
                    "swap_space is {} MiB, which this machine cannot give; lower it",
                    bytes.div_ceil(1 << 20)
                ))
            })?;
        Ok(Self { bytes: memory, block_bytes: block_bytes as usize, block_count: block_count as usize })
    }

    pub(super) fn block_count(&self) -> usize {
        self.block_count
    }

    /// What was written to a block, if anything was.
    pub(super) fn get(&self, block: HostBlockId) -> Option<&[u8]> {
        let start = block.index() * self.block_bytes;
        self.bytes.get(start..start + self.block_bytes)
    }

    /// The block, to be written.
    ///
    /// # Panics
    /// There is no such block.
    pub(super) fn get_mut(&mut self, block: HostBlockId) -> &mut [u8] {
        assert!(block.index() < self.block_count, "host block {block} of {}", self.block_count);
        let start = block.index() * self.block_bytes;
        let end = start + self.block_bytes;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[start..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_bytes_and_take_pages_as_they_are_used() {
        let mut pool = HostPool::new(100, 32).unwrap();
        assert_eq!((pool.block_count(), pool.bytes.len()), (3, 0));
        pool.get_mut(HostBlockId(1)).fill(7);
        assert_eq!(pool.bytes.len(), 64);
        let place = pool.bytes.as_ptr();
        pool.get_mut(HostBlockId(2)).fill(9);
        assert_eq!(pool.get(HostBlockId(1)), Some(&[7; 32][..]));
        assert_eq!(pool.get(HostBlockId(2)), Some(&[9; 32][..]));
        assert_eq!(pool.get(HostBlockId(3)), None);
        assert_eq!(pool.bytes.as_ptr(), place, "reserved once");
        assert_eq!(HostPool::new(31, 32).unwrap().block_count(), 0);
        assert!(HostPool::new(1 << 62, 32).is_err());
    }
}
