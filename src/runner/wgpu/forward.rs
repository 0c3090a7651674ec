//! Records one step for a bucket: the whole forward pass as a list of dispatches.

use super::buffers::{Buffers, Sizes};
use super::load::{DeviceLayer, DeviceModel, GateUp, Norm};
use crate::error::Result;
use crate::gpu::memory::Slice;
use crate::gpu::{Bundle, Gpu, Recorder};
use crate::kernels::attention::Mode;
use crate::kernels::attn_combine::{self, CombineParams};
use crate::kernels::{act_mul, attention, embed, norm, resolve, rope_kv, sample, update};
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

impl Forward<'_> {
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

    /// One step.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record_step(&self, recorder: &mut Recorder, bucket: &Bucket) -> Result<Bundle> {
        let Self { gpu, model, buffers: b, .. } = *self;
        let profile = &gpu.profile;
        let rows = bucket.rows.max(1);

        let pipeline = gpu.registry.get(&resolve::variant(profile))?;
        let arguments = [("inputs", &b.inputs), ("slots", &b.slots), ("tables", &b.tables), ("rows", &b.rows)];
        recorder.dispatch(gpu, "resolve", &pipeline, &arguments, resolve::grid(rows, profile))?;

        let pipeline = gpu.registry.get(&embed::variant(model.embed_dtype, profile))?;
        for shard in &model.embed {
            let mut arguments = vec![("rows", &b.rows), ("x", &b.hidden), ("params", &shard.params)];
            arguments.extend(shard.planes.iter().map(|(name, plane)| (*name, plane)));
            recorder.dispatch(gpu, "embed", &pipeline, &arguments, embed::grid(rows))?;
        }
        for (layer, (keys, values)) in model.layers.iter().zip(&b.kv) {
            self.record_layer(recorder, layer, keys, values, bucket, rows)?;
        }
        let passes = bucket.samples.div_ceil(self.sizes.logit_rows);
        for (pass, round) in model.rounds.iter().enumerate().take(passes) {
            let wanted = (bucket.samples - pass * self.sizes.logit_rows).min(self.sizes.logit_rows);
            self.record_norm(recorder, &round.norm, true, &b.hidden, &b.wanted, wanted)?;
            round.head.record(gpu, recorder, &b.inputs, &b.wanted, &b.logits, wanted)?;
            self.record_sample(recorder, &self.sample[pass], wanted)?;
        }
        Ok(recorder.finish())
    }

    fn record_layer(
        &self,
        recorder: &mut Recorder,
        layer: &DeviceLayer,
        keys: &Slice,
        values: &Slice,
        bucket: &Bucket,
        rows: usize,
    ) -> Result<()> {
        let Self { gpu, buffers: b, .. } = *self;
        let profile = &gpu.profile;
        self.record_norm(recorder, &layer.attn_norm, false, &b.hidden, &b.normed, rows)?;
        for product in &layer.qkv {
            product.record(gpu, recorder, &b.inputs, &b.normed, &b.qkv, rows)?;
        }
        let pipeline = gpu.registry.get(&rope_kv::variant(&layer.rope, profile))?;
        let mut arguments =
            vec![("rows", &b.rows), ("cos_sin", &layer.cos_sin), ("qkv", &b.qkv), ("keys", keys), ("values", values)];
        arguments.extend(layer.head_norms.iter().map(|norms| ("head_norms", norms)));
        recorder.dispatch(gpu, "rope_kv", &pipeline, &arguments, rope_kv::grid(&layer.rope, rows))?;

        let spec = &layer.attention;
        if bucket.tiles > 0 {
            self.record_attention(recorder, spec, Mode::Prefill, keys, values, bucket.tiles, 1)?;
        }
        if bucket.decode > 0 {
            let split = self.sizes.splits(spec, bucket.decode, bucket.chunks);
            let (mode, chunks) = if split { (Mode::Split, bucket.chunks) } else { (Mode::Decode, 1) };
            self.record_attention(recorder, spec, mode, keys, values, bucket.decode, chunks)?;
            if split {
                let pipeline = gpu.registry.get(&attn_combine::variant(spec, profile))?;
                let params = &self.combine[bucket.chunks.ilog2() as usize];
                let arguments = [
                    ("inputs", &b.inputs),
                    ("rows", &b.rows),
                    ("partials", &b.partials),
                    ("out", &b.attended),
                    ("params", params),
                ];
                let grid = attn_combine::grid(spec, bucket.decode);
                recorder.dispatch(gpu, "attn_combine", &pipeline, &arguments, grid)?;
            }
        }
        layer.output.record(gpu, recorder, &b.inputs, &b.attended, &b.hidden, rows)?;
        self.record_norm(recorder, &layer.mlp_norm, false, &b.hidden, &b.normed, rows)?;
        match &layer.gate_up {
            GateUp::Fused(product) => product.record(gpu, recorder, &b.inputs, &b.normed, &b.activated, rows)?,
            GateUp::Apart { gate, up, act_mul: params } => {
                gate.record(gpu, recorder, &b.inputs, &b.normed, &b.gate, rows)?;
                up.record(gpu, recorder, &b.inputs, &b.normed, &b.up, rows)?;
                let pipeline = gpu.registry.get(&act_mul::variant(profile))?;
                let arguments = [
                    ("inputs", &b.inputs),
                    ("gate", &b.gate),
                    ("up", &b.up),
                    ("out", &b.activated),
                    ("params", params),
                ];
                let grid = act_mul::grid(layer.intermediate_size, rows, profile);
                recorder.dispatch(gpu, "act_mul", &pipeline, &arguments, grid)?;
            }
        }
        layer.down.record(gpu, recorder, &b.inputs, &b.activated, &b.hidden, rows)
    }

    #[allow(clippy::too_many_arguments)] // all of one dispatch
    fn record_attention(
        &self,
        recorder: &mut Recorder,
        spec: &attention::Spec,
        mode: Mode,
        keys: &Slice,
        values: &Slice,
        tiles: usize,
        chunks: usize,
    ) -> Result<()> {
        let Self { gpu, buffers: b, .. } = *self;
        let pipeline = gpu.registry.get(&attention::variant(spec, mode, &gpu.profile))?;
        let arguments = [
            ("inputs", &b.inputs),
            ("rows", &b.rows),
            ("tables", &b.tables),
            ("qkv", &b.qkv),
            ("keys", keys),
            ("values", values),
            ("out", if mode == Mode::Split { &b.partials } else { &b.attended }),
        ];
        let label = if mode == Mode::Prefill { "attn_prefill" } else { "attn_decode" };
        recorder.dispatch(gpu, label, &pipeline, &arguments, attention::grid(spec, tiles, chunks))
    }

    fn record_norm(
        &self,
        recorder: &mut Recorder,
        norm: &Norm,
        gather: bool,
        x: &Slice,
        out: &Slice,
        rows: usize,
    ) -> Result<()> {
        let pipeline = self.gpu.registry.get(&norm::variant(gather, &self.gpu.profile))?;
        let arguments = [
            ("inputs", &self.buffers.inputs),
            ("x", x),
            ("weight", &norm.weight),
            ("out", out),
            ("params", &norm.params),
        ];
        recorder.dispatch(self.gpu, "norm", &pipeline, &arguments, norm::grid(rows))
    }

    fn record_sample(&self, recorder: &mut Recorder, params: &Slice, rows: usize) -> Result<()> {
        let Self { gpu, buffers: b, .. } = *self;
        let pipeline = gpu.registry.get(&sample::scan_variant(&gpu.profile))?;
        let arguments = [
            ("inputs", &b.inputs),
            ("slots", &b.slots),
            ("logits", &b.logits),
            ("partials", &b.scanned),
            ("params", params),
        ];
        recorder.dispatch(gpu, "sample_scan", &pipeline, &arguments, sample::scan_grid(self.vocab_size, rows))?;
        let pipeline = gpu.registry.get(&sample::pick_variant(self.vocab_size, &gpu.profile))?;
        let arguments = [
            ("inputs", &b.inputs),
            ("slots", &b.slots),
            ("rows", &b.rows),
            ("logits", &b.logits),
            ("partials", &b.scanned),
            ("sampled", &b.sampled),
            ("params", params),
        ];
        recorder.dispatch(gpu, "sample_pick", &pipeline, &arguments, sample::pick_grid(rows))
    }
}
