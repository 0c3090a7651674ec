//! Moves bytes to the device: bounded pieces for weights, one write per submission for step inputs.

use super::device::Gpu;
use super::memory::Buffer;
use crate::error::Result;

/// Staging that may be outstanding before the upload waits. `write_buffer` takes fresh staging memory each time and
/// gives it back only when the submission has run, so an unbounded load would hold the whole model twice.
const OUTSTANDING_BYTES: u64 = 64 << 20;

/// Fills buffers from the host in bounded pieces.
pub struct Uploader<'a> {
    gpu: &'a Gpu,
    outstanding: u64,
}

impl<'a> Uploader<'a> {
    /// An idle uploader.
    pub fn new(gpu: &'a Gpu) -> Self {
        Self { gpu, outstanding: 0 }
    }

    /// Writes `bytes` (a multiple of four) at `offset` of `buffer`.
    ///
    /// # Errors
    /// The device was lost.
    pub fn write(&mut self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut offset = offset;
        for piece in bytes.chunks(OUTSTANDING_BYTES as usize / 2) {
            self.gpu.queue.write_buffer(buffer.raw(), offset, piece);
            offset += piece.len() as u64;
            self.outstanding += piece.len() as u64;
            if self.outstanding >= OUTSTANDING_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Submits what is outstanding and waits for it.
    ///
    /// # Errors
    /// The device was lost.
    pub fn flush(&mut self) -> Result<()> {
        self.outstanding = 0;
        self.gpu.queue.submit([]);
        self.gpu.wait_idle()
    }
}

impl Gpu {
    /// Writes `bytes` at the start of `buffer`, ordered after everything submitted before and before the next submission.
    pub fn write(&self, buffer: &Buffer, bytes: &[u8]) {
        self.write_at(buffer, 0, bytes);
    }

    /// Writes `bytes` (a multiple of four) at `offset` of `buffer`, in the same order.
    pub fn write_at(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        self.queue.write_buffer(buffer.raw(), offset, bytes);
    }
}
