//! Submits work and brings results back late: a ring of mappable buffers, each owned by one submission in flight.

use super::bundle::Bundle;
use super::device::Gpu;
use super::memory::Slice;
use super::staging::{Direction, Staging, Turn};
use crate::error::{Error, ErrorKind, Result};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Submissions in flight, oldest first, and the buffers that carry their results.
pub struct Readback {
    free: Vec<Staging>,
    in_flight: VecDeque<Flight>,
    counts: Counts,
}

/// What has been submitted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Command buffers.
    pub submissions: u64,
    /// Dispatches in them.
    pub dispatches: u64,
    /// Host time of encoding, in nanoseconds; submitting itself is not counted.
    pub encode_nanos: u64,
}

struct Flight {
    index: wgpu::SubmissionIndex,
    staging: Staging,
    bytes: u64,
    riders: [Option<Staging>; 2],
    submitted: Instant,
}

/// What runs once before a submission's steps, and what else becomes the host's when all has run.
#[derive(Clone, Default)]
pub struct Prelude<'a> {
    /// In this order.
    pub bundles: [Option<&'a Bundle>; 2],
    /// Buffers that `bundles` copy to or from. The submission lands when the host has them too.
    pub riders: [Option<Staging>; 2],
}

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
    staging: Staging,
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
        let free =
            (0..depth).map(|_| Staging::new(gpu, "readback", bytes, Direction::ToHost)).collect::<Result<_>>()?;
        Ok(Self { free, in_flight: VecDeque::with_capacity(depth), counts: Counts::default() })
    }

    /// Encodes `prelude`, then `bundle` as often as `repeat` says, each time followed by a copy of `results` to the staging
    /// buffer; submits.
    ///
    /// # Errors
    /// The ring is full (a bug: the caller bounds what is in flight).
    pub fn submit(
        &mut self,
        gpu: &Gpu,
        prelude: Prelude<'_>,
        bundle: &Bundle,
        repeat: Repeat,
        results: &Slice,
    ) -> Result<()> {
        let Repeat { steps, parts, steps_per_submission } = repeat;
        let Some(staging) = self.free.pop() else {
            return Err(Error::bug("more submissions in flight than the readback ring holds"));
        };
        let submitted = Instant::now();
        let mut started = submitted;
        let mut encoder = new_encoder(gpu);
        for first in prelude.bundles.into_iter().flatten() {
            first.encode(&mut encoder);
            self.counts.dispatches += first.dispatch_count() as u64;
        }
        self.counts.dispatches += u64::from(steps) * bundle.dispatch_count() as u64;
        for step in 0..steps {
            for part in 0..parts.max(1) {
                if part > 0 || (step > 0 && step % steps_per_submission.max(1) == 0) {
                    let commands = std::mem::replace(&mut encoder, new_encoder(gpu)).finish();
                    self.counts.encode_nanos += started.elapsed().as_nanos() as u64;
                    gpu.queue.submit([commands]);
                    self.counts.submissions += 1;
                    started = Instant::now();
                }
                bundle.encode_part(&mut encoder, part, parts.max(1));
            }
            let to = u64::from(step) * results.bytes;
            encoder.copy_buffer_to_buffer(
                results.buffer.raw(),
                results.offset,
                staging.buffer().raw(),
                to,
                results.bytes,
            );
        }
        let bytes = u64::from(steps) * results.bytes;
        staging.hand_over(&encoder, bytes);
        for rider in prelude.riders.iter().flatten() {
            rider.hand_over(&encoder, rider.buffer().bytes());
        }
        let commands = encoder.finish();
        // Submitting is the driver's time: lavapipe even runs the commands in it.
        self.counts.encode_nanos += started.elapsed().as_nanos() as u64;
        let index = gpu.queue.submit([commands]);
        self.counts.submissions += 1;
        self.in_flight.push_back(Flight { index, staging, bytes, riders: prelude.riders, submitted });
        Ok(())
    }

    /// The oldest submission, if it finishes within `wait`.
    ///
    /// # Errors
    /// The device was lost.
    pub fn land(&mut self, gpu: &Gpu, wait: Duration) -> Result<Option<Landed>> {
        let Some(oldest) = self.in_flight.front() else { return Ok(None) };
        if oldest.turn() == Turn::Device {
            let poll = match wait.is_zero() {
                true => wgpu::PollType::Poll,
                false => wgpu::PollType::Wait { submission_index: Some(oldest.index.clone()), timeout: Some(wait) },
            };
            gpu.poll(poll)?;
        }
        match oldest.turn() {
            Turn::Device => Ok(None),
            Turn::Failed => {
                gpu.check()?;
                Err(Error::new(ErrorKind::DeviceLost, "results could not be read back from the device"))
            }
            Turn::Host => {
                let Some(flight) = self.in_flight.pop_front() else { return Ok(None) };
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
        let value = landed.staging.read(landed.bytes, read)?;
        landed.staging.release();
        self.free.push(landed.staging);
        Ok(value)
    }

    /// Submissions that have not landed.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// What has been submitted so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

impl Flight {
    /// The host's once all of the flight's buffers are.
    fn turn(&self) -> Turn {
        let riders = self.riders.iter().flatten().map(Staging::turn);
        riders.filter(|turn| *turn != Turn::Host).fold(self.staging.turn(), |turn, rider| match turn {
            Turn::Failed => turn,
            _ => rider,
        })
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
        ring.submit(self, Prelude::default(), bundle, Repeat::ONCE, results)?;
        loop {
            if let Some(landed) = ring.land(self, Duration::from_secs(60))? {
                return ring.take(landed, <[u8]>::to_vec);
            }
            self.check()?;
        }
    }
}
