//! Measures the shapes that products may have, on the model's own matrices, and keeps the fastest. All give the same bits, which
//! is checked, so that tuning never changes a token; at most [`TIME`] is spent on it, once for each adapter, driver and version.

use super::WgpuRunner;
use super::profile::Workload;
use crate::error::Result;
use crate::gpu::ProductShape;
use crate::gpu::kept::Kept;
use crate::kernels::choice::{product_candidates, product_shape};
use std::path::Path;
use std::time::{Duration, Instant};

/// Compiling a few pipelines takes most of it.
const TIME: Duration = Duration::from_millis(300);
/// A shape must be faster than the usual one by this much.
const GAIN: f64 = 0.05;
/// Runs of a candidate; the shortest counts.
const REPEATS: usize = 5;

/// How a search ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// What is used from now on.
    pub chosen: ProductShape,
    /// Candidates and their times, as far as the time sufficed; empty if the answer was kept from an earlier run.
    pub tried: Vec<(ProductShape, Duration)>,
}

impl WgpuRunner {
    /// Chooses the shape of products: as a file in `folder` says, else by measuring for `time`, after which the file says it.
    /// The runner must serve nobody yet.
    ///
    /// # Errors
    /// The device was lost.
    pub fn tune(&mut self, folder: Option<&Path>, time: Duration) -> Result<Tuning> {
        let candidates = product_candidates(&self.gpu.profile);
        let file = folder.map(|folder| Kept::new(folder, "products", &self.gpu.profile));
        let kept = file.as_ref().and_then(|file| serde_json::from_slice::<ProductShape>(&file.read()?).ok());
        // A file that names what is no candidate is not ours.
        if let Some(chosen) = kept.filter(|kept| candidates.contains(kept)) {
            self.use_shape(chosen);
            return Ok(Tuning { chosen, tried: Vec::new() });
        }
        let usual = product_shape(&self.gpu.profile);
        let (tried, complete) = self.try_shapes(&candidates, time)?;
        let best = tried.iter().min_by_key(|(_, time)| *time);
        let chosen = match (best, tried.first()) {
            (Some((best, time)), Some((_, first))) if time.as_secs_f64() < (1.0 - GAIN) * first.as_secs_f64() => *best,
            _ => usual,
        };
        self.use_shape(chosen);
        // A search that was cut short goes on at the next start, with pipelines that the driver has kept.
        if let Some(file) = file.filter(|_| complete) {
            let bytes = serde_json::to_vec(&chosen).expect("two numbers have a JSON form");
            // It will be measured again.
            file.write(&bytes).unwrap_or_else(|error| log::warn!("{error}"));
        }
        Ok(Tuning { chosen, tried })
    }

    /// With the usual time, where it may gain something: software adapters take longer to compile a candidate than any
    /// could save, and what is best there is known.
    pub(super) fn tune_usually(&mut self, folder: &Path) -> Result<()> {
        if self.gpu.profile.kind == crate::gpu::DeviceKind::Cpu {
            return Ok(());
        }
        let Tuning { chosen, tried } = self.tune(Some(folder), TIME)?;
        log::info!("products run as {chosen:?}, of {} shapes that were measured", tried.len());
        Ok(())
    }

    /// Times of the products of one decode step for each shape whose results are those of the first, and whether all had
    /// their turn.
    fn try_shapes(
        &mut self,
        candidates: &[ProductShape],
        time: Duration,
    ) -> Result<(Vec<(ProductShape, Duration)>, bool)> {
        let start = Instant::now();
        let mut tried = Vec::new();
        let mut expected: Option<Vec<u32>> = None;
        for (index, &shape) in candidates.iter().enumerate() {
            if index > 0 && start.elapsed() >= time {
                return Ok((tried, false));
            }
            self.use_shape(shape);
            let (bits, fastest) = match self.time_products(REPEATS) {
                Ok(measured) => measured,
                // A driver may refuse a shape; the usual one it must take.
                Err(error) if index > 0 && self.gpu.check().is_ok() => {
                    log::warn!("products as {shape:?} are left out: {error}");
                    continue;
                }
                Err(error) => return Err(error),
            };
            match &expected {
                Some(expected) if *expected != bits => log::warn!(
                    "products as {shape:?} give other results than as {:?} on {}, {}; a defect of the driver or of octavo",
                    candidates[0],
                    self.gpu.profile.name,
                    self.gpu.profile.driver
                ),
                Some(_) => tried.push((shape, fastest)),
                None => {
                    expected = Some(bits);
                    tried.push((shape, fastest));
                }
            }
        }
        Ok((tried, true))
    }

    /// Bits of the logits of a decode step, and the shortest time of all its products together.
    fn time_products(&mut self, repeats: usize) -> Result<(Vec<u32>, Duration)> {
        let step = self.prepare(Workload::Decode { rows: 1, context: 1 })?;
        self.gpu.times(&step.bundle, 1)?;
        let bits = self.read_logits(1)?.concat().into_iter().map(f32::to_bits).collect();
        let products = step.bundle.only(|dispatch| dispatch.pipeline.variant.kernel.starts_with("matmul"));
        Ok((bits, self.gpu.times(&products, repeats)?[0]))
    }

    /// Runs products in this shape from now on; for tests and benches.
    #[doc(hidden)]
    pub fn force_shape(&mut self, shape: ProductShape) {
        self.use_shape(shape);
    }

    fn use_shape(&mut self, shape: ProductShape) {
        self.gpu.profile.products = Some(shape);
        // They were recorded with another one.
        self.bundles.clear();
    }
}
