//! Records one step for a bucket: the whole forward pass as a list of dispatches.

use super::buffers::{Buffers, Sizes};
use super::forms::{Forms, Wanted};
use super::load::DeviceModel;
use crate::error::Result;
use crate::gpu::memory::Slice;
use crate::gpu::{Bundle, Gpu, Recorder, Variant};
use crate::kernels::Form;
use crate::kernels::attn_combine::CombineParams;
use crate::kernels::norm::Rows;
use crate::kernels::{resolve, sample, update};
use crate::layout::Bucket;

/// What recording reads.
pub(super) struct Forward<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) model: &'a DeviceModel,
    pub(super) buffers: &'a Buffers,
    pub(super) sizes: &'a Sizes,
    /// Parameters of `attn_combine` for each power of two of chunks.
    pub(super) combine: &'a [Slice],
    /// Parameters of the sampler for each pass over wanted rows.
    pub(super) sample: &'a [Slice],
    pub(super) vocab_size: usize,
}

/// Parameters of `attn_combine`, indexed by the logarithm of the chunk count.
pub(super) fn combine_params(max_chunks: usize) -> Vec<CombineParams> {
    let powers = max_chunks.next_power_of_two().ilog2() + 1;
    (0..powers).map(|power| CombineParams { chunk_stride: 1 << power, reserved: [0; 3] }).collect()
}

/// Where dispatches go.
enum Sink<'a> {
    /// Into a bundle.
    Record(&'a mut Recorder),
    /// Nowhere: only what they run is of interest.
    List(&'a mut Vec<Variant>),
}

/// A step that is being recorded.
pub(super) struct Recording<'a> {
    pub(super) gpu: &'a Gpu,
    sink: Sink<'a>,
    pub(super) buffers: &'a Buffers,
    pub(super) sizes: &'a Sizes,
    pub(super) combine: &'a [Slice],
    pub(super) bucket: &'a Bucket,
    /// Token rows of the bucket.
    pub(super) rows: usize,
}

impl Recording<'_> {
    /// Appends one dispatch.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn dispatch(
        &mut self,
        label: &'static str,
        variant: &Variant,
        arguments: &[(&str, &Slice)],
        grid: [u32; 3],
    ) -> Result<()> {
        match &mut self.sink {
            Sink::Record(recorder) => {
                let pipeline = self.gpu.registry.get(variant)?;
                recorder.dispatch(self.gpu, label, &pipeline, arguments, grid)
            }
            Sink::List(variants) => {
                if !variants.contains(variant) {
                    variants.push(variant.clone());
                }
                Ok(())
            }
        }
    }
}

impl<'a> Forward<'a> {
    fn recording(&self, sink: Sink<'a>, bucket: &'a Bucket) -> Recording<'a> {
        let Self { gpu, buffers, sizes, combine, .. } = *self;
        Recording { gpu, sink, buffers, sizes, combine, bucket, rows: bucket.rows.max(1) }
    }

    /// The changes of slots and tables that precede a submission's first step.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record_update(&self, recorder: &mut Recorder) -> Result<Bundle> {
        let b = self.buffers;
        let pipeline = self.gpu.registry.get(&update::variant(&self.gpu.profile))?;
        let arguments = [("inputs", &b.inputs), ("slots", &b.slots), ("tables", &b.tables)];
        recorder.dispatch(self.gpu, "update", &pipeline, &arguments, update::grid())?;
        Ok(recorder.finish())
    }

    /// One step: rows, embedding, each layer's attention and MLP, and for wanted rows final norm, head and sampler.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record_step(&self, recorder: &mut Recorder, bucket: &Bucket) -> Result<Bundle> {
        let forward = Forward { ..*self };
        forward.walk(&mut forward.recording(Sink::Record(recorder), bucket))?;
        Ok(recorder.finish())
    }

    /// What a step runs, each variant once, without compiling anything.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn list_variants(&self, bucket: &Bucket, variants: &mut Vec<Variant>) -> Result<()> {
        let forward = Forward { ..*self };
        forward.walk(&mut forward.recording(Sink::List(variants), bucket))
    }

    fn walk(&self, step: &mut Recording<'_>) -> Result<()> {
        let (model, b, bucket) = (self.model, self.buffers, step.bucket);
        let arguments =
            [("inputs", &b.inputs), ("slots", &b.slots), ("tables", &b.tables), ("rows", &b.rows), ("side", &b.side)];
        let grid = resolve::grid(step.rows, &self.gpu.profile);
        step.dispatch("resolve", &resolve::variant(&self.gpu.profile), &arguments, grid)?;

        for table in &model.embed {
            table.record(step)?;
        }
        for (index, (layer, (keys, values))) in model.layers.iter().zip(&b.kv).enumerate() {
            let [around_attention, around_mlp] = &layer.residuals;
            let next = model.layers.get(index + 1).map_or(Wanted::One(Form::F32), |next| next.attention.wants());
            layer.attention.record(step, around_attention, keys, values, layer.mlp.wants())?;
            layer.mlp.record(step, around_mlp, next)?;
        }
        let passes = bucket.samples.div_ceil(self.sizes.logit_rows);
        for (pass, round) in model.rounds.iter().enumerate().take(passes) {
            let wanted = (bucket.samples - pass * self.sizes.logit_rows).min(self.sizes.logit_rows);
            round.norm.record(step, Rows::Wanted, round.head.form(), &b.hidden, &b.wanted, wanted)?;
            round.head.record(step, Forms::only(&b.wanted), &b.logits, super::matrix::Extent::rows(wanted))?;
            self.record_sample(step, &self.sample[pass], wanted)?;
        }
        Ok(())
    }

    fn record_sample(&self, step: &mut Recording<'_>, params: &Slice, rows: usize) -> Result<()> {
        let b = self.buffers;
        let profile = &self.gpu.profile;
        let arguments = [
            ("inputs", &b.inputs),
            ("slots", &b.slots),
            ("rows", &b.rows),
            ("side", &b.side),
            ("logits", &b.logits),
            ("partials", &b.scanned),
            ("params", params),
        ];
        let grid = sample::scan_grid(self.vocab_size, rows);
        step.dispatch("sample_scan", &sample::scan_variant(profile), &arguments, grid)?;
        let arguments = [
            ("inputs", &b.inputs),
            ("slots", &b.slots),
            ("rows", &b.rows),
            ("logits", &b.logits),
            ("partials", &b.scanned),
            ("sampled", &b.sampled),
            ("params", params),
        ];
        let grid = sample::row_grid(rows);
        step.dispatch("sample_pick", &sample::pick_variant(self.vocab_size, profile), &arguments, grid)?;
        if !step.bucket.logprobs {
            return Ok(());
        }
        let arguments = [
            ("inputs", &b.inputs),
            ("slots", &b.slots),
            ("logits", &b.logits),
            ("results", &b.sampled),
            ("params", params),
        ];
        step.dispatch("sample_logprobs", &sample::logprobs_variant(self.vocab_size, profile), &arguments, grid)
    }
}
