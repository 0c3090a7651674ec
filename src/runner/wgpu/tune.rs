//! Measures the shapes that products may have, on the model's own matrices, and keeps the fastest whose results are those of the
//! usual shape, bit for bit: tuning never changes a token. A start spends about [`TIME`] on it and the next one goes on where it
//! stopped; the answer is kept for each adapter, driver, version, and set of matrices.

use super::WgpuRunner;
use super::profile::{Prepared, Workload};
use crate::config::EngineConfig;
use crate::error::{Error, Result};
use crate::gpu::ProductShape;
use crate::gpu::kept::Kept;
use crate::kernels::choice::{product_candidates, product_shape};
use crate::model::files::ModelFiles;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::{Duration, Instant};

/// Compiling a few pipelines takes most of it.
const TIME: Duration = Duration::from_millis(300);
/// A shape must be faster than the usual one by this much.
const GAIN: f64 = 0.05;
/// Runs of a candidate; the shortest counts.
const REPEATS: usize = 5;
/// Decoding sequences of the steps that are compared: one for each register tile.
const COMPARED_ROWS: [usize; 4] = [1, 2, 4, 8];
/// KV blocks of each.
const BLOCKS_EACH: usize = 4;
/// Prompt tokens of one more: several whole tiles and a part of one.
const COMPARED_TOKENS: usize = 27;

/// How a search ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// What is used from now on.
    pub chosen: ProductShape,
    /// What was measured this time: the usual shape, then candidates, and how long all products of a decode step took.
    pub tried: Vec<(ProductShape, Duration)>,
    /// Whether the search is over; until then the usual shape is used.
    pub complete: bool,
}

/// A search as far as it has come.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
struct Search {
    /// Candidates and the share of the usual shape's time that they took; those without one are out.
    tried: Vec<(ProductShape, Option<f64>)>,
    chosen: Option<ProductShape>,
}

impl Search {
    /// What was kept, if it is about these candidates and the usual shape.
    fn read(file: &Kept, usual: ProductShape, candidates: &[ProductShape]) -> Option<Self> {
        let search: Self = serde_json::from_slice(&file.read()?).ok()?;
        let known = |shape: &ProductShape| *shape == usual || candidates.contains(shape);
        let mut shapes = search.tried.iter().map(|(shape, _)| shape).chain(&search.chosen);
        shapes.all(known).then_some(search)
    }

    /// The first candidate that was not measured yet.
    fn next(&self, candidates: &[ProductShape]) -> Option<ProductShape> {
        candidates.iter().find(|shape| !self.tried.iter().any(|(tried, _)| tried == *shape)).copied()
    }

    /// The fastest candidate, if it is worth a change.
    fn best(&self) -> Option<ProductShape> {
        let shares = self.tried.iter().filter_map(|(shape, share)| Some((*shape, (*share)?)));
        let worth = shares.filter(|(_, share)| *share < 1.0 - GAIN);
        worth.min_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(shape, _)| shape)
    }

    fn rule_out(&mut self, out: ProductShape) {
        self.tried.iter_mut().filter(|(shape, _)| *shape == out).for_each(|(_, share)| *share = None);
    }
}

/// Whose products they are, as far as their speed depends on it: shapes and formats of all tensors, and how they are taken.
pub(super) fn matrices_of(files: &ModelFiles, config: &EngineConfig) -> [u8; 32] {
    let mut digest = Sha256::new();
    for info in files.tensors.infos() {
        digest.update(format!("{} {:?}\n", info.dtype, info.shape));
    }
    digest.update(format!("{:?} {:?} {:?}", config.quantize, config.activations, config.binding_limit));
    digest.finalize().into()
}

impl WgpuRunner {
    /// Chooses the shape of products: as a file in `folder` says, else by measuring for `time`, but one candidate in any case;
    /// the file says then how far the search came. The runner must serve nobody yet.
    ///
    /// # Errors
    /// The device was lost.
    pub fn tune(&mut self, folder: Option<&Path>, time: Duration) -> Result<Tuning> {
        let start = Instant::now();
        let candidates = product_candidates(&self.gpu.profile);
        let usual = candidates.first().copied().unwrap_or_else(|| product_shape(&self.gpu.profile));
        let candidates = candidates.get(1..).unwrap_or_default();
        let file = folder.map(|folder| self.kept_shape(folder));
        let mut search = file.as_ref().and_then(|file| Search::read(file, usual, candidates)).unwrap_or_default();
        let mut tried = Vec::new();
        // A piece in any case, or a slow device would never come to an end.
        let mut pieces = 0;
        while search.chosen.is_none() && (pieces == 0 || start.elapsed() < time) {
            self.search_on(&mut search, usual, candidates, &mut tried)?;
            pieces += 1;
        }
        if let Some(file) = file.filter(|_| pieces > 0) {
            let bytes = serde_json::to_vec(&search).expect("shapes and finite numbers have a JSON form");
            // It will be measured again.
            file.write(&bytes).unwrap_or_else(|error| log::warn!("{error}"));
        }
        let chosen = search.chosen.unwrap_or(usual);
        self.use_shape(chosen);
        Ok(Tuning { chosen, tried, complete: search.chosen.is_some() })
    }

    /// With the usual time, where it may gain something: software adapters take longer to compile a candidate than any
    /// could save, and what is best there is known.
    pub(super) fn tune_usually(&mut self, folder: &Path) -> Result<()> {
        if self.gpu.profile.kind == crate::gpu::DeviceKind::Cpu {
            return Ok(());
        }
        let Tuning { chosen, tried, complete } = self.tune(Some(folder), TIME)?;
        let (measured, end) = (tried.len(), if complete { "" } else { ", to be continued" });
        log::info!("products run as {chosen:?}; {measured} shapes were measured{end}");
        Ok(())
    }

    /// Where the search is kept.
    #[doc(hidden)]
    pub fn kept_shape(&self, folder: &Path) -> Kept {
        Kept::for_key(folder, "products", &self.matrices, &self.gpu.profile)
    }

    /// A piece of the search: measures one more candidate; or, where all were, compares the results of the best one.
    fn search_on(
        &mut self,
        search: &mut Search,
        usual: ProductShape,
        candidates: &[ProductShape],
        tried: &mut Vec<(ProductShape, Duration)>,
    ) -> Result<()> {
        if let Some(shape) = search.next(candidates) {
            if tried.is_empty() {
                tried.push((usual, self.time_products(usual)?));
            }
            let time = self.unless_refused(shape, |runner| runner.time_products(shape))?;
            search.tried.push((shape, time.map(|time| time.as_secs_f64() / tried[0].1.as_secs_f64().max(1e-9))));
            tried.extend(time.map(|time| (shape, time)));
            return Ok(());
        }
        let Some(best) = search.best() else {
            search.chosen = Some(usual);
            return Ok(());
        };
        let expected = self.results(usual)?;
        match self.unless_refused(best, |runner| runner.results(best))? {
            Some(results) if results == expected => search.chosen = Some(best),
            outcome => {
                if outcome.is_some() {
                    log::warn!(
                        "products as {best:?} give other results than as {usual:?} on {}, {}; a defect of the driver or of octavo",
                        self.gpu.profile.name,
                        self.gpu.profile.driver
                    );
                }
                search.rule_out(best);
            }
        }
        Ok(())
    }

    /// What `run` gives, or nothing if the driver refuses the shape; the usual one it must take.
    fn unless_refused<T>(
        &mut self,
        shape: ProductShape,
        run: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        match run(self) {
            Ok(found) => Ok(Some(found)),
            Err(error) => {
                self.gpu.check()?;
                log::warn!("products as {shape:?} are left out: {error}");
                Ok(None)
            }
        }
    }

    /// The shortest time of all products of a decode step together.
    fn time_products(&mut self, shape: ProductShape) -> Result<Duration> {
        self.use_shape(shape);
        let step = self.prepare(Workload::Decode { rows: 1, context: 1 })?;
        let products = step.bundle.only(|dispatch| dispatch.pipeline.variant.kernel.starts_with("matmul"));
        self.gpu.times(&step.bundle, 1)?;
        let times = self.gpu.times(&products, REPEATS)?;
        times.first().copied().ok_or_else(|| Error::bug("no product was timed"))
    }

    /// Bits of the logits of all rows of a prompt's chunk and of decode steps of several sizes. Each run starts where the one
    /// before it started: sequences read nothing but what they have just written.
    #[doc(hidden)]
    pub fn results(&mut self, shape: ProductShape) -> Result<Vec<Vec<u32>>> {
        self.use_shape(shape);
        let tokens = COMPARED_TOKENS.min(self.sizes.geometry.max_rows).min(self.sizes.logit_rows);
        let (tokens, step) = self.prepare_scored(tokens)?;
        let mut results = vec![self.bits_of(&step, tokens)?];
        let (slots, logit_rows) = (self.sizes.geometry.max_slots, self.sizes.logit_rows);
        // Sequences that shared a block would write over each other.
        let most = slots.min(logit_rows).min(self.sizes.block_count / BLOCKS_EACH);
        for rows in COMPARED_ROWS.into_iter().filter(|rows| *rows <= most) {
            let step = self.prepare(Workload::Decode { rows, context: 0 })?;
            results.push(self.bits_of(&step, rows)?);
        }
        Ok(results)
    }

    fn bits_of(&mut self, step: &Prepared, rows: usize) -> Result<Vec<u32>> {
        self.gpu.times(&step.bundle, 1)?;
        Ok(self.read_logits(rows)?.concat().into_iter().map(f32::to_bits).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(groups: u32) -> ProductShape {
        ProductShape { groups, segment_lanes: 1 }
    }

    #[test]
    fn the_fastest_candidate_that_is_worth_it_and_not_ruled_out() {
        let candidates = [shape(2), shape(4), shape(8), shape(16)];
        let mut search = Search::default();
        assert_eq!((search.next(&candidates), search.best()), (Some(shape(2)), None));
        search.tried = vec![(shape(2), Some(0.97)), (shape(8), None), (shape(4), Some(0.8))];
        assert_eq!((search.next(&candidates), search.best()), (Some(shape(16)), Some(shape(4))));
        search.tried.push((shape(16), Some(0.7)));
        assert_eq!((search.next(&candidates), search.best()), (None, Some(shape(16))));
        search.rule_out(shape(16));
        search.rule_out(shape(4));
        assert_eq!(search.best(), None, "three per cent are not worth it");
    }

    #[test]
    fn a_kept_search_is_read_back_unless_it_is_about_something_else() {
        let folder = tempfile::tempdir().unwrap();
        let profile = crate::gpu::Profile::cuda_class();
        let file = Kept::for_key(folder.path(), "products", &[1, 2], &profile);
        assert_ne!(file, Kept::for_key(folder.path(), "products", &[1, 3], &profile));
        let search = Search { tried: vec![(shape(2), Some(0.97)), (shape(8), None)], chosen: Some(shape(2)) };
        file.write(&serde_json::to_vec(&search).unwrap()).unwrap();
        assert_eq!(Search::read(&file, shape(1), &[shape(8), shape(2)]), Some(search));
        assert_eq!(Search::read(&file, shape(1), &[shape(2)]), None);
        let usual = Search { chosen: Some(shape(1)), ..Search::default() };
        file.write(&serde_json::to_vec(&usual).unwrap()).unwrap();
        assert_eq!(Search::read(&file, shape(1), &[]), Some(usual));
        file.write(b"{}").unwrap();
        assert_eq!(Search::read(&file, shape(1), &[shape(2)]), None);
    }
}
