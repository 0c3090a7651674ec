//! Activations and KV memory: sized once, never reallocated.

use super::experts;
use super::limits::widest_window;
use super::load::logits_stride;
use super::turns::TurnedRows;
use crate::base::{BLOCK_TOKENS, KV_CHUNK, ceil_div};
use crate::config::{ContextChoice, EngineConfig};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::gpu::memory::{Buffer, Slice, Use};
use crate::kernels::sample::{PARTIAL_BYTES, Sampled, VOCAB_BLOCK};
use crate::kernels::{attention, attn_combine};
use crate::layout::inputs::SeqState;
use crate::layout::{Geometry, SideLayout, StepInputs};
use crate::model::spec::{LayerSpec, ModelSpec};

/// Sizes of everything that does not hold weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) geometry: Geometry,
    /// KV blocks.
    pub(super) block_count: usize,
    /// Block table entries of a slot.
    pub(super) table_stride: usize,
    /// Rows of the logits buffer.
    pub(super) logit_rows: usize,
    /// Rows that may want logits in one step.
    pub(super) max_samples: usize,
    /// Entries of log-probabilities that one submission can report.
    pub(super) logprob_entries: usize,
    /// Memory of the sampler for each slot.
    pub(super) side: SideLayout,
    /// Decode steps in one submission.
    pub(super) max_steps: usize,
    /// The most past tokens that any layer sees, if every layer has such a window.
    pub(super) window: Option<u32>,
}

/// Logits of the rows of one pass; more rows take several passes.
const LOGITS_BYTES: usize = 32 << 20;
/// Entries of log-probabilities for each row that may want logits: the twenty alternatives that servers allow, and one to spare. One
/// row may have the whole vocabulary.
const ENTRIES_PER_ROW: usize = 21;
/// Decode rows times head tiles below which a row's chunks get workgroups of their own.
const SPLIT_BELOW: usize = 64;
/// Most memory for partial results of attention; rows that would need more walk their chunks by themselves, with the same bits.
const PARTIAL_ATTENTION_BYTES: u64 = 32 << 20;

impl Sizes {
    /// Sizes for `config` with `weight_bytes` of weights.
    ///
    /// # Errors
    /// Not even the smallest context fits; the message says what would.
    pub(super) fn new(spec: &ModelSpec, config: &EngineConfig, gpu: &Gpu, weight_bytes: u64) -> Result<Self> {
        let profile = &gpu.profile;
        let rows = config.max_num_batched_tokens.next_multiple_of(8);
        let max_samples = rows + config.max_num_seqs;
        let logits_row = logits_stride(spec.vocab_size) * 4;
        let sizes = |max_context: usize, block_count: usize| Self {
            geometry: Geometry { max_rows: rows, max_slots: config.max_num_seqs, max_context },
            block_count,
            table_stride: ceil_div(max_context, BLOCK_TOKENS),
            logit_rows: (LOGITS_BYTES / logits_row).clamp(1, max_samples),
            max_samples,
            logprob_entries: 2 * spec.vocab_size + ENTRIES_PER_ROW * max_samples,
            side: SideLayout { max_context, vocab_size: spec.vocab_size },
            max_steps: usize::from(config.steps_per_submit),
            window: widest_window(spec, max_context),
        };
        let widths = Widths::of(spec);
        let row_bytes = 4 * spec.hidden_size.max(widths.qkv).max(widths.intermediate).max(widths.expert_outputs) as u64;
        let most_rows = profile.max_binding.min(profile.max_buffer) / row_bytes;
        // Each pair of a row and an expert is a workgroup somewhere.
        let most_rows = most_rows.min(u64::from(profile.max_groups) / widths.chosen.max(1) as u64) / 8 * 8;
        if rows as u64 > most_rows {
            return Err(Error::config(format!(
                "max_num_batched_tokens is {}, but {} can compute {most_rows} rows of this model in a step; lower it to that",
                config.max_num_batched_tokens, profile.name
            )));
        }
        let block_bytes = config.kv_bytes_per_token * BLOCK_TOKENS as u64;
        // K and V of a layer are one binding each.
        let widest = spec.layers.iter().map(|layer| config.kv_dtype.row_bytes(&layer.attn)).max().unwrap_or(1);
        let layer_block = (widest * BLOCK_TOKENS) as u64;
        let most_blocks = profile.max_binding.min(profile.max_buffer) / layer_block;
        let fixed = weight_bytes + sizes(config.max_model_len, 0).activation_bytes(spec);
        let block_count = match config.num_kv_blocks {
            Some(blocks) => {
                let needed = fixed + blocks as u64 * block_bytes;
                if let Some(limit) = config.memory_limit.filter(|limit| needed > *limit) {
                    return Err(Error::config(format!(
                        "num_kv_blocks is {blocks}, which with weights and activations takes {needed} bytes, above \
                         memory_limit = {limit}; lower the first or raise the second"
                    )));
                }
                if blocks as u64 > most_blocks {
                    return Err(Error::config(format!(
                        "num_kv_blocks is {blocks}, but a binding of {} holds {most_blocks} blocks of this model; lower it to \
                         that",
                        profile.name
                    )));
                }
                blocks as u64
            }
            None => {
                let budget = config.memory_limit.unwrap_or_else(|| profile.assumed_memory());
                let usable = (budget as f64 * f64::from(config.gpu_memory_utilization)) as u64;
                let most = if config.memory_limit.is_none() { profile.assumed_kv_bytes() } else { u64::MAX };
                let kv = usable.saturating_sub(fixed).min(most);
                let wanted = config.max_num_seqs * ceil_div(config.max_model_len, BLOCK_TOKENS);
                if kv < block_bytes {
                    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
                    return Err(Error::memory(format!(
                        "weights and activations take {} MiB of the {} MiB that may be used, which leaves no room for \
                         the KV cache; raise --memory-limit, or lower --max-num-batched-tokens",
                        mib(fixed),
                        mib(usable)
                    )));
                }
                (kv / block_bytes).min(wanted as u64)
            }
        };
        let block_count = block_count.min(most_blocks) as usize;
        let fits = block_count * BLOCK_TOKENS;
        if fits < config.max_model_len && config.context == ContextChoice::Asked {
            return Err(Error::memory(format!(
                "max_model_len is {}, but the memory for the KV cache holds {fits} tokens; lower it to {fits}, or raise \
                 --memory-limit",
                config.max_model_len
            )));
        }
        Ok(sizes(config.max_model_len.min(fits), block_count))
    }

    fn activation_bytes(&self, spec: &ModelSpec) -> u64 {
        let rows = self.geometry.max_rows;
        let widths = Widths::of(spec);
        let row = 2 * spec.hidden_size + widths.qkv + widths.query + 3 * widths.intermediate + widths.read / 2;
        let row = row + widths.sublayer + widths.expert_outputs + widths.experts + 4 * widths.chosen;
        // Logits twice: the model's, and those after the rules of the requests.
        let logits = self.logit_rows * (2 * logits_stride(spec.vocab_size) + spec.hidden_size);
        let scanned = self.logit_rows * spec.vocab_size.div_ceil(VOCAB_BLOCK) * PARTIAL_BYTES / 4;
        let results = self.result_bytes() / 4;
        let tables = self.geometry.max_slots * (self.table_stride + self.side.stride());
        let rotations: usize = spec.ropes.iter().map(|rope| self.geometry.max_context * rope.rotary_dim).sum();
        ((rows * row + logits + scanned + results + tables + rotations) * 4) as u64 + PARTIAL_ATTENTION_BYTES
    }

    /// Results of the largest step: samples, then entries of log-probabilities.
    pub(super) fn result_bytes(&self) -> usize {
        self.max_samples.next_power_of_two() * size_of::<Sampled>() + self.logprob_entries * 8
    }

    /// Whether `rows` decode rows with `chunks` chunks give each chunk a workgroup of its own.
    pub(super) fn splits(&self, spec: &attention::Spec, rows: usize, chunks: usize) -> bool {
        chunks > 1
            && rows * (spec.heads / spec.heads_per_tile()) < SPLIT_BELOW
            && attn_combine::partial_bytes(spec, rows.next_power_of_two(), chunks) <= PARTIAL_ATTENTION_BYTES
    }
}

/// Widest rows of any layer.
pub(super) struct Widths {
    pub(super) qkv: usize,
    pub(super) query: usize,
    /// Between the projections of an MLP, of all experts of a token.
    pub(super) intermediate: usize,
    /// Of all rows of a token that a product of a layer reads.
    pub(super) read: usize,
    /// Of outputs that are normed before they are added; 0 if there are none.
    pub(super) sublayer: usize,
    /// Of the outputs of all experts of a token; this and what follows is 0 without experts.
    pub(super) expert_outputs: usize,
    /// Scores of experts.
    pub(super) experts: usize,
    /// Experts of a token.
    pub(super) chosen: usize,
}

impl Widths {
    pub(super) fn of(spec: &ModelSpec) -> Self {
        let widest = |width: fn(&LayerSpec) -> usize| spec.layers.iter().map(width).max().unwrap_or(0);
        let post_norms = |layer: &LayerSpec| layer.attn_post_norm.is_some() || layer.mlp_post_norm.is_some();
        let chosen = widest(|layer| experts::spec_of(&layer.mlp).map_or(0, |spec| spec.chosen));
        let query = widest(|layer| layer.attn.query_width());
        let intermediate =
            widest(|layer| layer.mlp.intermediate_size * experts::spec_of(&layer.mlp).map_or(1, |spec| spec.chosen));
        Self {
            read: spec.hidden_size.max(query).max(intermediate),
            qkv: widest(|layer| layer.attn.query_width() + 2 * layer.attn.kv_width()),
            query,
            intermediate,
            sublayer: if spec.layers.iter().any(post_norms) { spec.hidden_size } else { 0 },
            expert_outputs: chosen * spec.hidden_size,
            experts: widest(|layer| experts::spec_of(&layer.mlp).map_or(0, |spec| spec.count)),
            chosen,
        }
    }
}

/// All of it.
pub(super) struct Buffers {
    pub(super) inputs: Slice,
    pub(super) slots: Slice,
    pub(super) tables: Slice,
    pub(super) rows: Slice,
    /// `rows`, and behind them the tables of rotations.
    pub(super) rows_and_turns: Slice,
    pub(super) hidden: Slice,
    pub(super) normed: Slice,
    pub(super) qkv: Slice,
    pub(super) attended: Slice,
    pub(super) partials: Slice,
    pub(super) gate: Slice,
    pub(super) up: Slice,
    pub(super) activated: Slice,
    /// Rows as int12 that their makers left as f32.
    pub(super) quantized: Slice,
    /// Outputs that are normed before they are added.
    pub(super) sublayer: Slice,
    /// Of a mixture: scores of the experts, those chosen, who multiplies with which, and what they gave.
    pub(super) scores: Slice,
    pub(super) chosen: Slice,
    pub(super) routes: Slice,
    pub(super) expert_outputs: Slice,
    pub(super) wanted: Slice,
    /// The model's, and behind them those after the rules of the requests.
    pub(super) logits: Slice,
    /// The sampler's memory of the slots: see [`SideLayout`].
    pub(super) side: Slice,
    pub(super) scanned: Slice,
    pub(super) sampled: Slice,
    /// (keys, values) of each layer.
    pub(super) kv: Vec<(Slice, Slice)>,
    /// Bytes of `kv`.
    pub(super) kv_bytes: u64,
}

impl Buffers {
    /// Allocates everything but the list of rows, which stands in `turned`; `apart` says whether some layer computes gate and up
    /// separately.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn new(
        gpu: &Gpu,
        spec: &ModelSpec,
        config: &EngineConfig,
        sizes: &Sizes,
        turned: &TurnedRows,
        apart: bool,
    ) -> Result<Self> {
        let storage = |label: &str, bytes: usize| Ok(gpu.memory.create(label, bytes as u64, Use::Storage)?.whole());
        let floats = |label: &str, rows: usize, width: usize| storage(label, rows * width * 4);
        let widths = Widths::of(spec);
        let (rows, slots) = (sizes.geometry.max_rows, sizes.geometry.max_slots);
        // Gate and up projections meet in the product's epilogue unless some layer keeps them apart.
        let apart = if apart { widths.intermediate } else { 0 };
        let mut kv = Vec::with_capacity(spec.layers.len());
        for layer in &spec.layers {
            let bytes = sizes.block_count * BLOCK_TOKENS * config.kv_dtype.row_bytes(&layer.attn);
            kv.push((storage("keys", bytes)?, storage("values", bytes)?));
        }
        let chunks = ceil_div(sizes.geometry.max_context, KV_CHUNK).next_power_of_two();
        let partials = (spec.layers.iter())
            .map(|layer| {
                let spec = attention::Spec::new(&layer.attn, config.kv_dtype);
                let chunks = spec.chunks(chunks).next_power_of_two();
                // With fewer chunks, more rows may be split.
                let powers = (0..=chunks.ilog2()).map(|power| 1usize << power);
                let bytes = |chunks: usize| {
                    let rows = (1..=slots).filter(|rows| sizes.splits(&spec, *rows, chunks)).max().unwrap_or(0);
                    attn_combine::partial_bytes(&spec, rows.next_power_of_two(), chunks)
                };
                powers.map(bytes).max().unwrap_or(0)
            })
            .max();
        let route_words = spec.layers.iter().filter_map(|layer| experts::spec_of(&layer.mlp));
        let route_words = route_words.map(|spec| spec.route_words(rows)).max().unwrap_or(0);
        let stride = logits_stride(spec.vocab_size);
        let scan_blocks = spec.vocab_size.div_ceil(VOCAB_BLOCK);
        let kv_bytes = kv.iter().map(|(keys, values): &(Slice, Slice)| keys.bytes + values.bytes).sum();
        Ok(Self {
            inputs: storage("step inputs", StepInputs::capacity_bytes(rows, slots, sizes.table_stride))?,
            slots: storage("slots", slots * size_of::<SeqState>())?,
            tables: storage("block tables", slots * sizes.table_stride * 4)?,
            rows: turned.rows.clone(),
            rows_and_turns: turned.whole.clone(),
            hidden: floats("hidden", rows, spec.hidden_size)?,
            normed: floats("normed", rows, spec.hidden_size)?,
            qkv: floats("qkv", rows, widths.qkv)?,
            attended: floats("attended", rows, widths.query)?,
            partials: storage("attention partials", partials.unwrap_or(0) as usize)?,
            gate: floats("gate", rows, apart)?,
            up: floats("up", rows, apart)?,
            activated: floats("activated", rows, widths.intermediate)?,
            // Two bytes a column.
            quantized: floats("quantised rows", rows, if config.activations.int12() { widths.read / 2 } else { 0 })?,
            sublayer: floats("sublayer outputs", rows, widths.sublayer)?,
            scores: floats("expert scores", rows, widths.experts)?,
            chosen: storage("chosen experts", rows * widths.chosen * 8)?,
            routes: storage("expert routes", route_words * 4)?,
            expert_outputs: floats("expert outputs", rows, widths.expert_outputs)?,
            wanted: floats("wanted rows", sizes.logit_rows.next_multiple_of(8), spec.hidden_size)?,
            logits: floats("logits", 2 * sizes.logit_rows, stride)?,
            side: storage("tokens, lists and masks", slots * sizes.side.stride() * 4)?,
            scanned: storage("scanned", sizes.logit_rows * scan_blocks * PARTIAL_BYTES)?,
            sampled: storage("sampled", sizes.result_bytes())?,
            kv,
            kv_bytes,
        })
    }

    /// The buffer of the step inputs.
    pub(super) fn inputs_buffer(&self) -> &Buffer {
        &self.inputs.buffer
    }
}
