//! Prepares steps before requests want them: their pipelines are compiled and run once, for software drivers compile at the first
//! dispatch, and their bundles are recorded. What runs has not a single valid row, so that it changes nothing.
//!
//! Some of it is done while the model is loaded, the rest by [`WgpuRunner::prepare_piece`] whenever nothing is in flight.

use super::WgpuRunner;
use crate::base::{KV_CHUNK, ceil_div};
use crate::config::{LoadProgress, LoadStage, WarmUp};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Bundle, Variant};
use crate::layout::{Bucket, Geometry};
use crate::runner::Prepared;
use crate::sched::plan::StepPlan;
use std::collections::{HashSet, VecDeque};

/// Steps that are prepared while nothing is in flight.
#[derive(Default)]
pub(super) struct Preparation {
    waiting: VecDeque<Bucket>,
    total: usize,
    /// The first of them, recorded, but not all of it has run.
    recorded: Option<Bundle>,
    /// What has run.
    seen: HashSet<Variant>,
}

impl WgpuRunner {
    /// Records what precedes a submission's first step, and runs it with nothing to do.
    pub(super) fn start_update(&mut self) -> Result<()> {
        self.write_empty_inputs();
        self.update = {
            let mut recorder = std::mem::take(&mut self.recorder);
            let update = self.forward().record_update(&mut recorder);
            self.recorder = recorder;
            update?
        };
        self.gpu.run(&self.update, &self.buffers.sampled.buffer.slice(0, 16)).map(drop)
    }

    fn write_empty_inputs(&mut self) {
        self.inputs.build(&StepPlan::default(), &self.input_shape());
        self.gpu.write(self.buffers.inputs_buffer(), self.inputs.bytes());
    }

    /// Prepares what `when` leaves to loading: one short request alone, or the steps that use each pipeline.
    pub(super) fn warm_up(&mut self, when: WarmUp, progress: &mut dyn FnMut(LoadProgress)) -> Result<()> {
        // Tuning may have left a step there.
        self.write_empty_inputs();
        let mut buckets = self.buckets_of_each_pipeline();
        if when == WarmUp::Idle {
            self.prepare_later(&buckets);
            buckets.retain(|bucket| *bucket == super::SINGLE || *bucket == SHORT_PROMPT);
        }
        let total = buckets.len() as u64;
        progress(LoadProgress { stage: LoadStage::Compiling, done: 0, total });
        let mut variants = Vec::new();
        for bucket in &buckets {
            self.forward().list_variants(bucket, &mut variants)?;
        }
        self.gpu.registry.warm_up(&variants)?;
        self.gpu.registry.save();
        let results = self.buffers.sampled.buffer.slice(0, 16);
        for (done, bucket) in buckets.into_iter().enumerate() {
            progress(LoadProgress { stage: LoadStage::Compiling, done: done as u64, total });
            let bundle = self.record(&bucket)?;
            self.gpu.run(&bundle, &results)?;
            self.bundles.insert(bucket, bundle);
        }
        self.preparation.seen.extend(variants);
        self.moves.warm_up(&self.gpu, self.sizes.block_count)?;
        // wgpu clears a buffer when it is first used; the KV pools have been used above, so that this is over too.
        progress(LoadProgress { stage: LoadStage::Compiling, done: total, total });
        Ok(())
    }

    /// Buckets that together use every pipeline.
    fn buckets_of_each_pipeline(&self) -> Vec<Bucket> {
        let geometry = &self.sizes.geometry;
        let mut buckets: Vec<Bucket> =
            [1, 2, 4, 8].into_iter().filter(|rows| *rows <= geometry.max_slots).map(|rows| decode(rows, 1)).collect();
        if ceil_div(geometry.max_context, KV_CHUNK) > 1 {
            buckets.push(decode(1, 2));
        }
        buckets.push(Bucket { logprobs: true, ..decode(1, 1) });
        buckets.push(SHORT_PROMPT);
        // Experts meet larger tiles only in larger steps.
        let most = geometry.max_rows;
        let mut tiles = Vec::new();
        for rows in doublings(8, most) {
            let experts = self.model.layers.iter().filter_map(|layer| layer.mlp.experts());
            let new: Vec<_> =
                experts.map(|spec| (*spec, spec.tile(rows))).filter(|seen| !tiles.contains(seen)).collect();
            if !new.is_empty() && rows > 8 {
                buckets.push(Bucket { rows, ..SHORT_PROMPT });
            }
            tiles.extend(new);
        }
        buckets
    }

    /// Leaves `buckets`, and all that are likely to be wanted, to [`prepare_piece`](Self::prepare_piece).
    fn prepare_later(&mut self, buckets: &[Bucket]) {
        let mut waiting: VecDeque<Bucket> = buckets.iter().copied().collect();
        // Eager steps are recorded afresh each time.
        if !self.eager {
            waiting.extend(likely_buckets(&self.sizes.geometry, self.tile_queries));
        }
        let mut known = HashSet::new();
        waiting.retain(|bucket| known.insert(*bucket));
        self.preparation.total = waiting.len();
        self.preparation.waiting = waiting;
    }

    /// Compiles a pipeline, runs one for the first time, or records a step; whatever comes first of what is left to prepare. Only
    /// while nothing is in flight.
    ///
    /// # Errors
    /// The device was lost.
    pub(super) fn prepare_piece(&mut self) -> Result<Prepared> {
        self.gpu.check()?;
        if !self.pending.is_empty() {
            return Err(Error::bug("steps are prepared while others are in flight"));
        }
        while let Some(bucket) = self.preparation.waiting.front().copied() {
            // A request may have wanted it meanwhile.
            let piece_done = !self.bundles.contains_key(&bucket)
                && match self.prepare_bucket(&bucket) {
                    Ok(done) => done,
                    Err(error) if error.kind() == ErrorKind::DeviceLost => return Err(error),
                    // Perhaps nobody ever wants it; who does is told.
                    Err(error) => {
                        log::warn!("steps of {} rows cannot be prepared: {error}", bucket.rows);
                        false
                    }
                };
            if piece_done {
                break;
            }
            self.preparation.waiting.pop_front();
            self.preparation.recorded = None;
            if self.preparation.waiting.is_empty() {
                self.gpu.registry.save();
            }
        }
        let count = |count: usize| count.try_into().unwrap_or(u32::MAX);
        let Preparation { waiting, total, .. } = &self.preparation;
        Ok(Prepared { done: count(total - waiting.len()), total: count(*total) })
    }

    /// A piece of a bucket's preparation; `false` if that was the end of it and took no time.
    fn prepare_bucket(&mut self, bucket: &Bucket) -> Result<bool> {
        if self.preparation.recorded.is_none() {
            let mut variants = Vec::new();
            self.forward().list_variants(bucket, &mut variants)?;
            if let Some(new) = variants.iter().find(|variant| !self.gpu.registry.has(variant)) {
                self.gpu.registry.get(new)?;
                return Ok(true);
            }
            self.preparation.recorded = Some(self.record(bucket)?);
            return Ok(true);
        }
        let Some(bundle) = self.preparation.recorded.take() else { return Ok(false) };
        let unseen = bundle.dispatches().find(|dispatch| !self.preparation.seen.contains(&dispatch.pipeline.variant));
        if let Some(variant) = unseen.map(|dispatch| dispatch.pipeline.variant.clone()) {
            self.write_empty_inputs();
            // A step begins with its list of rows. What follows would take that of an earlier step for its own.
            self.gpu.times(&bundle.first_and(&variant), 1)?;
            self.preparation.seen.insert(variant);
            self.preparation.recorded = Some(bundle);
            return Ok(true);
        }
        if !self.eager {
            self.bundles.insert(*bucket, bundle);
        }
        Ok(false)
    }
}

/// A chunk of a short prompt.
const SHORT_PROMPT: Bucket = Bucket { rows: 8, decode: 0, tiles: 8, samples: 1, chunks: 0, logprobs: false };

/// So many decoding sequences, the longest of them in so many chunks.
fn decode(rows: usize, chunks: usize) -> Bucket {
    Bucket { rows, decode: rows, tiles: 0, samples: rows, chunks, logprobs: false }
}

/// `first`, twice as much, and so on, and `most` at last; nothing if that is so small that not even half of `first` is below it.
fn doublings(first: usize, most: usize) -> impl Iterator<Item = usize> {
    let doubled = std::iter::successors(Some(first), |count| count.checked_mul(2));
    doubled.take_while(move |count| *count < 2 * most).map(move |count| count.min(most))
}

/// Steps that serving is mostly made of, in the order in which they are likely to come: chunks of one prompt and few sequences in
/// short contexts; more of them, and longer ones; and chunks beside a few decoding sequences.
fn likely_buckets(geometry: &Geometry, tile_queries: usize) -> Vec<Bucket> {
    let Geometry { max_rows, max_slots, max_context } = *geometry;
    let up = |count: usize, limit: usize| count.next_power_of_two().min(limit.max(count));
    // `tokens` of a prompt beside `rows` decoding sequences; with the prompt's end its first token is sampled.
    let mixed = |tokens: usize, rows: usize, ends: bool| Bucket {
        rows: up(tokens + rows, max_rows),
        decode: if rows > 0 { up(rows, max_slots) } else { 0 },
        tiles: up(tokens.div_ceil(tile_queries), max_rows),
        samples: match rows + usize::from(ends) {
            0 => 0,
            samples => up(samples, max_rows + max_slots),
        },
        chunks: usize::from(rows > 0),
        logprobs: false,
    };
    let most_chunks = ceil_div(max_context, KV_CHUNK).next_power_of_two();
    let longest = max_rows.min(max_context);
    let mut buckets: Vec<Bucket> = doublings(1, max_slots.min(8)).map(|rows| decode(rows, 1)).collect();
    // Tiles are counted apart from rows, so both ends of a doubling may differ.
    for tokens in doublings(16, longest).flat_map(|tokens| [tokens / 2 + 1, tokens]) {
        buckets.extend([mixed(tokens, 0, true), mixed(tokens, 0, false)]);
    }
    for chunks in doublings(1, most_chunks) {
        buckets.extend(doublings(1, max_slots).map(|rows| decode(rows, chunks)));
    }
    for rows in doublings(1, max_slots.min(8)).filter(|rows| *rows < max_rows) {
        let tokens = (max_rows - rows).min(max_context);
        buckets.extend([mixed(tokens, rows, true), mixed(tokens, rows, false)]);
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_double_up_to_the_most() {
        assert_eq!(doublings(8, 8).collect::<Vec<_>>(), [8]);
        assert_eq!(doublings(8, 100).collect::<Vec<_>>(), [8, 16, 32, 64, 100]);
        assert_eq!(doublings(1, 1).collect::<Vec<_>>(), [1]);
        // Fewer than the first: none.
        assert_eq!(doublings(16, 5).collect::<Vec<_>>(), Vec::<usize>::new());
    }

    #[test]
    fn likely_steps_are_those_of_chats_and_of_small_crowds() {
        let geometry = Geometry { max_rows: 512, max_slots: 64, max_context: 2048 };
        let buckets = likely_buckets(&geometry, 2);
        let has = |bucket: Bucket| assert!(buckets.contains(&bucket), "{bucket:?}");
        let prompt = |rows, tiles, samples| Bucket { rows, decode: 0, tiles, samples, chunks: 0, logprobs: false };
        for bucket in [decode(1, 1), decode(64, 1), decode(1, 8), decode(16, 4)] {
            has(bucket);
        }
        // Of 16, 17 to 32, and 512 tokens.
        for bucket in [prompt(16, 8, 1), prompt(32, 16, 1), prompt(512, 256, 0), prompt(512, 256, 1)] {
            has(bucket);
        }
        has(Bucket { rows: 512, decode: 4, tiles: 256, samples: 8, chunks: 1, logprobs: false });
        assert!(buckets.iter().all(|bucket| bucket.rows <= 512 && bucket.chunks <= 8 && bucket.decode <= 64));
        assert!(buckets.len() < 100, "{}", buckets.len());
    }
}
