//! How long bundles and their dispatches take: by the clock on the wall, and by the device's own timestamps around passes.
//!
//! Each dispatch gets a pass of its own for the latter. Timestamps inside a pass are taken without waiting for the dispatch
//! on lavapipe, those at its two ends only where a barrier stands between one pass and the next, and zeros come from some
//! drivers. So whoever uses them compares their sum with the wall.

use super::bundle::{Bundle, Dispatch};
use super::device::Gpu;
use super::memory::Use;
use super::readback::{Prelude, Readback, Repeat};
use crate::error::Result;
use std::time::{Duration, Instant};

/// Most timestamps in one query set, by WebGPU.
const MOST_QUERIES: usize = 4096;

impl Gpu {
    /// Runs `bundle` `repeats` times, each a submission that is waited for, and says how long each took, shortest first.
    ///
    /// # Errors
    /// The device was lost.
    pub fn times(&self, bundle: &Bundle, repeats: usize) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(repeats);
        for _ in 0..repeats.max(1) {
            let start = Instant::now();
            let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            bundle.encode(&mut encoder);
            self.queue.submit([encoder.finish()]);
            self.wait_idle()?;
            times.push(start.elapsed());
        }
        times.sort();
        Ok(times)
    }

    /// Host time of encoding `bundle` once, without submitting it; the shortest of `repeats` attempts.
    pub fn encode_time(&self, bundle: &Bundle, repeats: usize) -> Duration {
        let attempts = (0..repeats.max(1)).map(|_| {
            let start = Instant::now();
            let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            bundle.encode(&mut encoder);
            let commands = encoder.finish();
            let time = start.elapsed();
            drop(commands);
            time
        });
        attempts.min().unwrap_or_default()
    }

    /// Runs the dispatches of `bundle`, each in a pass between two timestamps, and says how long each took; `None` where the
    /// device has no timestamps, gives them in the wrong order, or there are more dispatches than one query set holds.
    /// Copies are left out.
    ///
    /// # Errors
    /// Out of memory, or the device was lost.
    pub fn pass_times(&self, bundle: &Bundle) -> Result<Option<Vec<Duration>>> {
        let dispatches: Vec<&Dispatch> = bundle.dispatches().collect();
        let count = 2 * dispatches.len();
        if !self.profile.timestamps || count == 0 || count > MOST_QUERIES {
            return Ok(None);
        }
        let queries = self.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("pass times"),
            ty: wgpu::QueryType::Timestamp,
            count: count as u32,
        });
        let stamps = self.memory.create("pass times", 8 * count as u64, Use::Queries)?;
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for (first, Dispatch { pipeline, group, grid: [x, y, z], .. }) in (0..).step_by(2).zip(dispatches) {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                    query_set: &queries,
                    beginning_of_pass_write_index: Some(first),
                    end_of_pass_write_index: Some(first + 1),
                }),
            });
            pass.set_pipeline(&pipeline.raw);
            pass.set_bind_group(0, group, &[]);
            pass.dispatch_workgroups(*x, *y, *z);
        }
        encoder.resolve_query_set(&queries, 0..count as u32, stamps.raw(), 0);
        self.queue.submit([encoder.finish()]);
        let results = stamps.slice(0, 8 * count as u64);
        let mut ring = Readback::new(self, 1, results.bytes)?;
        ring.submit(self, Prelude::default(), &Bundle::default(), Repeat::ONCE, &results)?;
        let stamps: Vec<u64> = loop {
            if let Some(landed) = ring.land(self, Duration::from_secs(60))? {
                break ring.take(landed, bytemuck::pod_collect_to_vec)?;
            }
        };
        let period = f64::from(self.queue.get_timestamp_period());
        Ok(durations(&stamps, period))
    }
}

/// Pairs of stamps in units of `period` nanoseconds as durations, if no pair runs backwards and not all are zero.
fn durations(stamps: &[u64], period: f64) -> Option<Vec<Duration>> {
    let ticks = stamps.chunks_exact(2).map(|pair| pair[1].checked_sub(pair[0]));
    let ticks: Vec<u64> = ticks.collect::<Option<_>>()?;
    let some = ticks.iter().any(|ticks| *ticks > 0);
    some.then(|| ticks.into_iter().map(|ticks| Duration::from_nanos((ticks as f64 * period) as u64)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_that_cannot_be_times_are_refused() {
        let nanos = |values: &[u64]| Some(values.iter().map(|nanos| Duration::from_nanos(*nanos)).collect::<Vec<_>>());
        assert_eq!(durations(&[10, 14, 20, 20], 2.5), nanos(&[10, 0]));
        assert_eq!(durations(&[10, 14, 20, 19], 1.0), None);
        assert_eq!(durations(&[0, 0, 0, 0], 1.0), None);
        assert_eq!(durations(&[7, 7], 1.0), None);
    }
}
