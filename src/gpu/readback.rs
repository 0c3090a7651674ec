//! Submits work and brings results back late: a ring of mappable buffers, each owned by one submission in flight.

use super::bundle::Bundle;
use super::device::Gpu;
use super::memory::{Buffer, Slice, Use};
use crate::error::{Error, ErrorKind, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Submissions in flight, oldest first, and the buffers that carry their results.
pub struct Readback {
    free: Vec<Buffer>,
    in_flight: VecDeque<Flight>,
    flags: Vec<Arc<AtomicU8>>,
    encode_micros: u64,
    submissions: u64,
}

struct Flight {
    index: wgpu::SubmissionIndex,
    staging: Buffer,
    bytes: u64,
    mapped: Arc<AtomicU8>,
    submitted: Instant,
}

const PENDING: u8 = 0;
const MAPPED: u8 = 1;
const FAILED: u8 = 2;

/// How often a bundle runs, and how that is spread over submissions, so that none keeps the device longer than its watchdog
/// or a user interface likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Times that the bundle runs.
    pub steps: u32,
    /// Pieces of each time, each a submission of its own.
    pub parts: usize,
    /// Times in one submission.
    pub steps_per_submission: u32,
}

impl Repeat {
    /// Once, in one piece.
    pub const ONCE: Self = Self { steps: 1, parts: 1, steps_per_submission: 1 };
}

/// A finished submission.
pub struct Landed {
    staging: Buffer,
    bytes: u64,
    /// Time since it was submitted, in microseconds.
    pub micros: u64,
}

impl Readback {
    /// A ring for `depth` submissions whose results take at most `bytes`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(gpu: &Gpu, depth: usize, bytes: u64) -> Result<Self> {
        let free = (0..depth).map(|_| gpu.memory.create("readback", bytes, Use::Readback)).collect::<Result<_>>()?;
        let flags = (0..depth).map(|_| Arc::default()).collect();
        Ok(Self { free, in_flight: VecDeque::with_capacity(depth), flags, encode_micros: 0, submissions: 0 })
    }

    /// Encodes `first`, then `bundle` as often as `repeat` says, each time followed by a copy of `results` to the staging
    /// buffer; submits.
    ///
    /// # Errors
    /// The ring is full (a bug: the caller bounds what is in flight).
    pub fn submit(
        &mut self,
        gpu: &Gpu,
        first: Option<&Bundle>,
        bundle: &Bundle,
        repeat: Repeat,
        results: &Slice,
    ) -> Result<()> {
        let Repeat { steps, parts, steps_per_submission } = repeat;
        let (Some(staging), Some(mapped)) = (self.free.pop(), self.flags.pop()) else {
            return Err(Error::bug("more submissions in flight than the readback ring holds"));
        };
        let submitted = Instant::now();
        let mut started = submitted;
        let mut encoder = new_encoder(gpu);
        if let Some(first) = first {
            first.encode(&mut encoder);
        }
        for step in 0..steps {
            for part in 0..parts.max(1) {
                if part > 0 || (step > 0 && step % steps_per_submission.max(1) == 0) {
                    let commands = std::mem::replace(&mut encoder, new_encoder(gpu)).finish();
                    self.encode_micros += started.elapsed().as_micros() as u64;
                    gpu.queue.submit([commands]);
                    self.submissions += 1;
                    started = Instant::now();
                }
                bundle.encode_part(&mut encoder, part, parts.max(1));
            }
            let to = u64::from(step) * results.bytes;
            encoder.copy_buffer_to_buffer(results.buffer.raw(), results.offset, staging.raw(), to, results.bytes);
        }
        let bytes = u64::from(steps) * results.bytes;
        mapped.store(PENDING, Ordering::Relaxed);
        let flag = mapped.clone();
        encoder.map_buffer_on_submit(staging.raw(), wgpu::MapMode::Read, 0..bytes, move |outcome| {
            flag.store(if outcome.is_ok() { MAPPED } else { FAILED }, Ordering::Release);
        });
        let commands = encoder.finish();
        // Submitting is the driver's time: lavapipe even runs the commands in it.
        self.encode_micros += started.elapsed().as_micros() as u64;
        let index = gpu.queue.submit([commands]);
        self.submissions += 1;
        self.in_flight.push_back(Flight { index, staging, bytes, mapped, submitted });
        Ok(())
    }

    /// The oldest submission, if it finishes within `wait`.
    ///
    /// # Errors
    /// The device was lost.
    pub fn land(&mut self, gpu: &Gpu, wait: Duration) -> Result<Option<Landed>> {
        let Some(oldest) = self.in_flight.front() else { return Ok(None) };
        if oldest.mapped.load(Ordering::Acquire) == PENDING {
            let poll = match wait.is_zero() {
                true => wgpu::PollType::Poll,
                false => wgpu::PollType::Wait { submission_index: Some(oldest.index.clone()), timeout: Some(wait) },
            };
            gpu.poll(poll)?;
        }
        match oldest.mapped.load(Ordering::Acquire) {
            PENDING => Ok(None),
            FAILED => {
                gpu.check()?;
                Err(Error::new(ErrorKind::DeviceLost, "results could not be read back from the device"))
            }
            _ => {
                let Some(flight) = self.in_flight.pop_front() else { return Ok(None) };
                self.flags.push(flight.mapped);
                let micros = flight.submitted.elapsed().as_micros() as u64;
                Ok(Some(Landed { staging: flight.staging, bytes: flight.bytes, micros }))
            }
        }
    }

    /// Shows the bytes of a finished submission to `read` and returns its buffer to the ring.
    ///
    /// # Errors
    /// The mapping is gone, which happens only with the device.
    pub fn take<R>(&mut self, landed: Landed, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let value = {
            let view = (landed.staging.raw().get_mapped_range(0..landed.bytes))
                .map_err(|error| Error::new(ErrorKind::DeviceLost, format!("results are not mapped: {error}")))?;
            read(&view)
        };
        landed.staging.raw().unmap();
        self.free.push(landed.staging);
        Ok(value)
    }

    /// Submissions that have not landed.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Host time spent encoding so far, in microseconds; submitting itself is not counted.
    pub fn encode_micros(&self) -> u64 {
        self.encode_micros
    }

    /// Command buffers submitted so far.
    pub fn submissions(&self) -> u64 {
        self.submissions
    }
}

fn new_encoder(gpu: &Gpu) -> wgpu::CommandEncoder {
    gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
}

impl Gpu {
    /// Runs `bundle` once and reads `results` back, waiting for it; for tests, self-tests and benches.
    ///
    /// # Errors
    /// The device was lost.
    pub fn run(&self, bundle: &Bundle, results: &Slice) -> Result<Vec<u8>> {
        let mut ring = Readback::new(self, 1, results.bytes)?;
        ring.submit(self, None, bundle, Repeat::ONCE, results)?;
        loop {
            if let Some(landed) = ring.land(self, Duration::from_secs(60))? {
                return ring.take(landed, <[u8]>::to_vec);
            }
            self.check()?;
        }
    }
}
