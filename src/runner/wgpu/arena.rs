//! Small constants on the device: parameters of dispatches, norms and biases, packed into few buffers at aligned offsets.

use crate::error::Result;
use crate::gpu::Gpu;
use crate::gpu::memory::{Buffer, Slice, Use};
use crate::gpu::upload::Uploader;

/// Hands out slices of chunks that it allocates as needed.
pub(super) struct Arena {
    purpose: Use,
    label: &'static str,
    chunk: Option<Buffer>,
    used: u64,
}

/// Holds the parameters of a few hundred dispatches, or the norms of a small model.
const CHUNK_BYTES: u64 = 256 << 10;

impl Arena {
    pub(super) fn new(label: &'static str, purpose: Use) -> Self {
        Self { purpose, label, chunk: None, used: 0 }
    }

    /// Stores `bytes` for good.
    ///
    /// # Errors
    /// Out of memory, or the device was lost.
    pub(super) fn push(&mut self, gpu: &Gpu, uploader: &mut Uploader<'_>, bytes: &[u8]) -> Result<Slice> {
        let size = (bytes.len() as u64).next_multiple_of(16);
        let start = self.used.next_multiple_of(gpu.profile.offset_align.max(16));
        let (chunk, start) = match self.chunk.take() {
            Some(chunk) if start + size <= chunk.bytes() => (chunk, start),
            _ => (gpu.memory.create(self.label, size.max(CHUNK_BYTES), self.purpose)?, 0),
        };
        uploader.write(&chunk, start, bytes)?;
        let slice = chunk.slice(start, size);
        self.used = start + size;
        self.chunk = Some(chunk);
        Ok(slice)
    }
}
