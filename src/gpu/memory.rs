//! Device memory: every buffer is created here, labelled and counted.

use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Creates buffers and knows how many bytes live.
pub struct Ledger {
    device: wgpu::Device,
    live: Arc<AtomicU64>,
    created: AtomicU64,
}

/// A device buffer. Clones share it; the bytes are given back with the last one.
#[derive(Clone)]
pub struct Buffer {
    inner: Arc<BufferInner>,
}

struct BufferInner {
    raw: wgpu::Buffer,
    id: u64,
    live: Arc<AtomicU64>,
}

impl Drop for BufferInner {
    fn drop(&mut self) {
        self.live.fetch_sub(self.raw.size(), Ordering::Relaxed);
    }
}

/// A part of a buffer, as a kernel sees it.
#[derive(Clone)]
pub struct Slice {
    /// The buffer.
    pub buffer: Buffer,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// What a buffer is for; decides its wgpu usages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Read and written by kernels, filled and copied by the host.
    Storage,
    /// Small constants of a dispatch.
    Uniform,
    /// Carries results to the host.
    Readback,
    /// Carries data to the device; created mapped.
    Upload,
    /// Timestamps that the device took.
    Queries,
}

impl Ledger {
    pub(super) fn new(device: wgpu::Device) -> Self {
        Self { device, live: Arc::default(), created: AtomicU64::new(0) }
    }

    /// A zeroed buffer of at least `bytes` (rounded up to 16).
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn create(&self, label: &str, bytes: u64, purpose: Use) -> Result<Buffer> {
        use wgpu::BufferUsages as U;
        let size = bytes.max(16).next_multiple_of(16);
        let usage = match purpose {
            Use::Storage => U::STORAGE | U::COPY_SRC | U::COPY_DST,
            Use::Uniform => U::UNIFORM | U::COPY_DST,
            Use::Readback => U::MAP_READ | U::COPY_DST,
            Use::Upload => U::MAP_WRITE | U::COPY_SRC,
            Use::Queries => U::QUERY_RESOLVE | U::COPY_SRC,
        };
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let invalid = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let raw = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: purpose == Use::Upload,
        });
        let invalid = pollster::block_on(invalid.pop());
        let memory = pollster::block_on(scope.pop());
        if memory.is_some() || invalid.is_some() {
            let live = self.live_bytes() >> 20;
            let wanted = size as f64 / f64::from(1 << 20);
            return Err(Error::memory(format!(
                "the device could not give {wanted:.1} MiB for {label} ({live} MiB are in use); \
                 try a smaller context, fewer KV blocks or a quantised file"
            )));
        }
        self.live.fetch_add(size, Ordering::Relaxed);
        let id = self.created.fetch_add(1, Ordering::Relaxed);
        Ok(Buffer { inner: Arc::new(BufferInner { raw, id, live: self.live.clone() }) })
    }

    /// Bytes of all living buffers.
    pub fn live_bytes(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Buffers created so far: constant once an engine is warm.
    pub fn created_count(&self) -> u64 {
        self.created.load(Ordering::Relaxed)
    }
}

impl Buffer {
    /// Identity, never reused.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.inner.raw.size()
    }

    /// The whole buffer.
    pub fn whole(&self) -> Slice {
        self.slice(0, self.bytes())
    }

    /// `bytes` from `offset` on.
    ///
    /// # Panics
    /// The range leaves the buffer.
    pub fn slice(&self, offset: u64, bytes: u64) -> Slice {
        assert!(offset + bytes <= self.bytes(), "slice {offset}+{bytes} of a buffer of {} bytes", self.bytes());
        Slice { buffer: self.clone(), offset, bytes }
    }

    pub(super) fn raw(&self) -> &wgpu::Buffer {
        &self.inner.raw
    }
}
