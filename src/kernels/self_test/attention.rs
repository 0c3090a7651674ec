//! Cases of `attention` and `attn_combine`.

use super::cache::Cache;
use super::data::{Source, Spread};
use super::norms::{check_rows, row_words};
use super::rig::{Dispatch, Rig, failed};
use super::{Found, Outcome};
use crate::base::{BLOCK_TOKENS, KV_CHUNK};
use crate::kernels::Form;
use crate::kernels::attention::{self as kernel, Mode, Spec};
use crate::kernels::attn_combine::{self, CombineParams};
use crate::layout::StepHeader;
use crate::model::spec::AttnSpec;
use crate::reference::attention::attend_with_magnitude;

/// How a query gets its result. All three give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// In a tile of a prompt.
    Prefill,
    /// As a decode row, by one workgroup.
    Decode,
    /// As a decode row, by a workgroup for each chunk and a merge.
    Split,
}

impl Path {
    /// The kernel that the path ends in.
    pub fn kernel(self) -> &'static str {
        if self == Self::Split { "attn_combine" } else { "attention" }
    }
}

/// Queries of each sequence on the prefill path: not a multiple of any tile.
const PROMPT_QUERIES: usize = 11;

/// One sequence of the case.
struct Sequence {
    /// `[position][kv_heads][head_dim]`, as stored.
    keys: Vec<f64>,
    values: Vec<f64>,
    context: usize,
    /// Cache block of each 16 positions.
    blocks: Vec<u32>,
}

/// Attention for sequences with the given contexts. What no query may see is garbage, and its blocks are somebody else's. The bits are those of the last query of each, so that they can be
/// compared between paths: data depend on `seed`, sequence and position alone.
///
/// # Errors
/// The result is wrong, or the device failed.
pub fn attend(rig: &Rig<'_>, spec: &Spec, (path, form): (Path, Form), contexts: &[usize], seed: u32) -> Outcome {
    let Spec { heads, kv_heads, head_dim, scale, window, softcap, kv } = *spec;
    let kv_width = kv_heads * head_dim;
    let table_stride = contexts.iter().map(|context| context.div_ceil(BLOCK_TOKENS)).max().unwrap_or(0) + 1;
    let block_count = contexts.iter().map(|context| context.div_ceil(BLOCK_TOKENS)).sum::<usize>() + 3;
    let mut free = Source::new(seed).shuffled(block_count);
    let unwritten_block = free.remove(0);
    let layout = Cache { kv, kv_heads, head_dim };
    let mut caches = [layout.unwritten(block_count), layout.unwritten(block_count)];
    let mut tables = vec![u32::MAX; contexts.len() * table_stride];
    let mut sequences = Vec::new();
    for (slot, &context) in contexts.iter().enumerate() {
        let blocks = free.split_off(free.len() - context.div_ceil(BLOCK_TOKENS));
        tables[slot * table_stride..][..blocks.len()].copy_from_slice(&blocks);
        let queries = if path == Path::Prefill { PROMPT_QUERIES.min(context) } else { 1 };
        // The first position that the first of the sequence's queries sees.
        let earliest = (context - queries + 1).saturating_sub(window.unwrap_or(usize::MAX));
        for entry in &mut tables[slot * table_stride..][..earliest / BLOCK_TOKENS] {
            *entry = unwritten_block;
        }
        let mut source = Source::new(seed + 100 + slot as u32);
        let mut fill = |cache: &mut [u32]| {
            let mut exact = Vec::with_capacity(context * kv_width);
            for (position, head) in (0..context).flat_map(|position| (0..kv_heads).map(move |head| (position, head))) {
                let mut numbers = source.numbers(head_dim, Spread::Plain);
                if position < earliest {
                    numbers.fill(f32::NAN);
                }
                let place = blocks[position / BLOCK_TOKENS] as usize * BLOCK_TOKENS + position % BLOCK_TOKENS;
                exact.extend(layout.put(cache, layout.entry(place, head), &numbers));
            }
            exact
        };
        let [keys, values] = &mut caches;
        sequences.push(Sequence { keys: fill(keys), values: fill(values), context, blocks });
    }

    // One row a query: (slot, position).
    let mut rows = Vec::new();
    let mut tiles = Vec::new();
    for (slot, sequence) in sequences.iter().enumerate() {
        let count = if path == Path::Prefill { PROMPT_QUERIES.min(sequence.context) } else { 1 };
        for first in (0..count).step_by(spec.tile_queries()) {
            let length = spec.tile_queries().min(count - first);
            tiles.push([(rows.len() + first) as u32, length as u32, slot as u32, 0]);
        }
        rows.extend((sequence.context - count..sequence.context).map(|position| (slot, position)));
    }
    let stride = (heads + 2 * kv_heads) * head_dim;
    let mut qkv = vec![f32::NAN; rows.len() * stride];
    for (&(slot, position), row) in rows.iter().zip(qkv.chunks_mut(stride)) {
        let mut source = Source::new(seed ^ (slot * 4096 + position) as u32 ^ 0x00ff_0000);
        row[..heads * head_dim].copy_from_slice(&source.numbers(heads * head_dim, Spread::Plain));
    }
    let table_rows: Vec<[u32; 4]> = rows
        .iter()
        .map(|&(slot, position)| {
            let block = sequences[slot].blocks[position / BLOCK_TOKENS];
            [1, slot as u32, position as u32, block * 16 + position as u32 % 16]
        })
        .collect();

    let decode = path != Path::Prefill;
    let header = StepHeader {
        row_count: rows.len() as u32,
        decode_count: if decode { rows.len() as u32 } else { 0 },
        tile_count: if decode { 0 } else { tiles.len() as u32 },
        table_stride: table_stride as u32,
        ..Default::default()
    };
    let longest = contexts.iter().copied().max().unwrap_or(1);
    let chunks = spec.chunks(longest.div_ceil(KV_CHUNK)).next_power_of_two();
    let inputs = rig.step_inputs(&header, &tiles).map_err(failed)?;
    let rows_slice = rig.input(&table_rows).map_err(failed)?;
    let tables_slice = rig.input(&tables).map_err(failed)?;
    let qkv_slice = rig.input(&qkv).map_err(failed)?;
    let [keys, values] = [rig.input(&caches[0]).map_err(failed)?, rig.input(&caches[1]).map_err(failed)?];
    let output = rig.output(&vec![f32::NAN; rows.len() * row_words(form, heads * head_dim)]).map_err(failed)?;
    let partial_words = attn_combine::partial_bytes(spec, rows.len(), chunks) as usize / 4;
    let partials = rig.output(&vec![f32::NAN; partial_words]).map_err(failed)?;
    let params = rig.params(&CombineParams { chunk_stride: chunks as u32, reserved: [0; 3] }).map_err(failed)?;
    let attention = |mode: Mode, out, tiles: usize, chunks: usize| Dispatch {
        variant: kernel::variant(spec, mode, if mode == Mode::Split { Form::F32 } else { form }, &rig.gpu.profile),
        arguments: vec![
            ("inputs", &inputs),
            ("rows", &rows_slice),
            ("tables", &tables_slice),
            ("qkv", &qkv_slice),
            ("keys", &keys),
            ("values", &values),
            ("result", out),
        ],
        grid: kernel::grid(spec, tiles, chunks),
    };
    let dispatches = match path {
        // One tile and one row of padding, as a bucket has them.
        Path::Prefill => vec![attention(Mode::Prefill, &output.slice, tiles.len() + 1, 1)],
        Path::Decode => vec![attention(Mode::Decode, &output.slice, rows.len() + 1, 1)],
        Path::Split => vec![
            attention(Mode::Split, &partials.slice, rows.len(), chunks),
            Dispatch {
                variant: attn_combine::variant(spec, form, &rig.gpu.profile),
                arguments: vec![
                    ("inputs", &inputs),
                    ("rows", &rows_slice),
                    ("partials", &partials.slice),
                    ("result", &output.slice),
                    ("params", &params),
                ],
                grid: attn_combine::grid(spec, rows.len()),
            },
        ],
    };
    let found = rig.run(&dispatches, &[&output, &partials])?;

    let attn = AttnSpec { scale, window, softcap, ..AttnSpec::plain(heads, kv_heads, head_dim) };
    let width = heads * head_dim;
    let mut bits = Vec::new();
    let mut worst_share = 0.0f64;
    for (index, &(slot, position)) in rows.iter().enumerate() {
        let sequence = &sequences[slot];
        let row_words = row_words(form, width);
        let words = &found[0][index * row_words..][..row_words];
        let queries: Vec<f64> = qkv[index * stride..][..width].iter().map(|&q| f64::from(q)).collect();
        let key = |at: usize| &sequence.keys[at * kv_width..][..kv_width];
        let value = |at: usize| &sequence.values[at * kv_width..][..kv_width];
        let (twin, magnitude) = attend_with_magnitude(&queries, &key, &value, &attn, position + 1);
        let share = check_rows(form, words, &twin, &magnitude, head_dim + position + 16)
            .map_err(|error| format!("context {}, position {position}: {error}", sequence.context))?;
        worst_share = worst_share.max(share);
        if position + 1 == sequence.context {
            bits.extend(words);
        }
    }
    Ok(Found { bits, worst_share })
}
