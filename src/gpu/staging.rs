//! Buffers that host and device take turns with. The host's turn begins when the submission that asked for it has run, and
//! ends with [`Staging::release`] or [`Staging::fill`]; nobody waits for it on the way.

use super::bundle::Bundle;
use super::device::Gpu;
use super::memory::{Buffer, Use};
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// A mappable buffer. Clones share it.
#[derive(Clone)]
pub struct Staging {
    buffer: Buffer,
    direction: Direction,
    turn: Arc<AtomicU8>,
}

/// Where the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device copies into the buffer, the host reads it.
    ToHost,
    /// The host fills the buffer, the device copies out of it.
    ToDevice,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Device,
    Host,
    /// The device is gone.
    Failed,
}

const DEVICE: u8 = 0;
const HOST: u8 = 1;
const FAILED: u8 = 2;

impl Staging {
    /// A buffer of at least `bytes`. The first turn is that of whoever writes.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(gpu: &Gpu, label: &str, bytes: u64, direction: Direction) -> Result<Self> {
        let (purpose, turn) = match direction {
            Direction::ToHost => (Use::Readback, DEVICE),
            Direction::ToDevice => (Use::Upload, HOST),
        };
        let buffer = gpu.memory.create(label, bytes, purpose)?;
        Ok(Self { buffer, direction, turn: Arc::new(AtomicU8::new(turn)) })
    }

    /// What copies to and from it name.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    pub(super) fn turn(&self) -> Turn {
        match self.turn.load(Ordering::Acquire) {
            DEVICE => Turn::Device,
            HOST => Turn::Host,
            _ => Turn::Failed,
        }
    }

    /// Asks for the host's turn over the first `bytes`, once everything in `encoder` has run.
    pub(super) fn hand_over(&self, encoder: &wgpu::CommandEncoder, bytes: u64) {
        let mode = match self.direction {
            Direction::ToHost => wgpu::MapMode::Read,
            Direction::ToDevice => wgpu::MapMode::Write,
        };
        self.turn.store(DEVICE, Ordering::Relaxed);
        let turn = self.turn.clone();
        encoder.map_buffer_on_submit(self.buffer.raw(), mode, 0..bytes, move |outcome| {
            turn.store(if outcome.is_ok() { HOST } else { FAILED }, Ordering::Release);
        });
    }

    /// Shows the first `bytes` to `read`; the turn remains the host's.
    ///
    /// # Errors
    /// It is not the host's turn, which happens only if the device is gone.
    pub fn read<R>(&self, bytes: u64, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let view = (self.buffer.raw().get_mapped_range(0..bytes))
            .map_err(|error| Error::new(ErrorKind::DeviceLost, format!("results are not mapped: {error}")))?;
        Ok(read(&view))
    }

    /// Lets `fill` write the first `bytes` through the function it is given, `write(offset, bytes)`, and ends the host's
    /// turn. What it leaves out keeps an arbitrary older content.
    ///
    /// # Errors
    /// It is not the host's turn, which happens only if the device is gone.
    pub fn fill(&self, bytes: u64, fill: impl FnOnce(&mut dyn FnMut(usize, &[u8]))) -> Result<()> {
        {
            let mut view = (self.buffer.raw().get_mapped_range_mut(0..bytes))
                .map_err(|error| Error::new(ErrorKind::DeviceLost, format!("an upload is not mapped: {error}")))?;
            // Mapped memory may be write-combining: it is written in order and never read.
            fill(&mut |offset, part| view.slice(offset..offset + part.len()).copy_from_slice(part));
        }
        self.release();
        Ok(())
    }

    /// Ends the host's turn.
    pub fn release(&self) {
        self.buffer.raw().unmap();
        self.turn.store(DEVICE, Ordering::Relaxed);
    }
}

impl Gpu {
    /// Runs `bundle` and waits until all of `staging` is the host's.
    ///
    /// # Errors
    /// The device was lost.
    pub fn run_staged(&self, bundle: &Bundle, staging: &Staging) -> Result<()> {
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        bundle.encode(&mut encoder);
        staging.hand_over(&encoder, staging.buffer().bytes());
        self.queue.submit([encoder.finish()]);
        loop {
            match staging.turn() {
                Turn::Host => return Ok(()),
                Turn::Device => self.wait_idle()?,
                Turn::Failed => {
                    self.check()?;
                    return Err(Error::new(ErrorKind::DeviceLost, "a staging buffer could not be mapped"));
                }
            }
        }
    }
}
