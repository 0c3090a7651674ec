//! A bench for the sampler's three passes. The cases stand in [`cases`], what the twins say of the results in `checks`, and
//! [`draws`] makes many draws at once.

pub mod cases;
mod checks;
mod draws;

pub use checks::{drawn_from, sample};
pub use draws::draws;

use super::rig::{Dispatch, Output, Rig, failed};
use crate::base::TokenId;
use crate::gpu::memory::Slice;
use crate::kernels::sample::{self as kernel, PARTIAL_BYTES, SampleParams, Sampled, VOCAB_BLOCK};
use crate::layout::StepHeader;
use crate::layout::inputs::{ENTRIES_PER_SAMPLE, NONE, SeqState};
use crate::reference::process::{Request, processed};
use crate::sampling::lists::{fill_mask, mask_words};
use crate::sampling::row::{NO_LOGPROBS, logprob_entries};
use crate::sampling::{SamplingLists, SamplingRow};
use bytemuck::Zeroable;

/// One wanted row. Each has a slot of its own.
#[derive(Clone, Debug)]
pub struct Row {
    /// How to sample.
    pub sampling: SamplingRow,
    /// The parameters without a fixed size.
    pub lists: SamplingLists,
    /// Position of the input token.
    pub position: u32,
    /// Tokens up to that position, where the request looks at them.
    pub history: Vec<TokenId>,
    /// How many of them are the prompt's.
    pub prompt_len: u32,
    /// First index that must not be generated.
    pub limit: u32,
    /// Token to score instead of sampling.
    pub scored: Option<TokenId>,
}

/// Some rows over the same or their own logits.
#[derive(Clone, Debug)]
pub struct Case {
    /// In a few words.
    pub name: String,
    /// One row of logits for all rows, or one for each.
    pub logits: Vec<Vec<f32>>,
    /// At least one.
    pub rows: Vec<Row>,
}

/// What came of the rows.
#[derive(Clone, Debug)]
pub struct Outputs {
    /// What the device reported of each.
    pub sampled: Vec<Sampled>,
    /// The slots afterwards.
    pub states: Vec<SeqState>,
    /// Logits after the rules of each row's request; unwritten where it has none.
    pub processed: Vec<Vec<f32>>,
    /// Entries of log-probabilities of each.
    pub entries: Vec<Vec<[u32; 2]>>,
}

impl Row {
    fn wants(&self) -> u32 {
        if self.scored.is_some() { self.sampling.prompt_logprobs } else { self.sampling.logprobs }
    }

    fn has_rules(&self) -> bool {
        let row = &self.sampling;
        let penalties = [row.repetition_penalty - 1.0, row.presence_penalty, row.frequency_penalty];
        !self.lists.is_empty() || penalties.iter().any(|penalty| *penalty != 0.0)
    }

    fn mask(&self, vocab_size: usize) -> Option<Vec<u32>> {
        let mut mask = vec![0; mask_words(vocab_size)];
        fill_mask(&mut mask, self.lists.allowed.as_deref()?);
        Some(mask)
    }

    /// The twin's logits, with its mask in `mask`; `None` if some are not finite.
    pub fn processed(&self, logits: &[f32]) -> Option<Vec<f64>> {
        let mask = self.mask(logits.len());
        let (row, lists) = (&self.sampling, &self.lists);
        let history = &self.history;
        let request = Request { row, lists, mask: mask.as_deref(), history, prompt_len: self.prompt_len as usize };
        processed(logits, &request)
    }

    fn state(&self) -> SeqState {
        SeqState {
            position_limit: self.limit,
            prompt_len: self.prompt_len,
            sampling: self.sampling,
            ..SeqState::zeroed()
        }
    }
}

impl Case {
    /// The logits of row `index`.
    pub fn logits_of(&self, index: usize) -> &[f32] {
        &self.logits[if self.logits.len() == 1 { 0 } else { index }]
    }

    /// The sampler's memory of all rows' slots, and in `header` where everything is: no wider than these rows need.
    fn side(&self, header: &mut StepHeader) -> Vec<u32> {
        let vocab_size = self.logits[0].len();
        let longest = |words: fn(&Row) -> usize| self.rows.iter().map(words).max().unwrap_or(0);
        let lists_at = longest(|row| row.history.len());
        let mask_at = lists_at + longest(|row| row.lists.words());
        let stride = mask_at + mask_words(vocab_size);
        let mut words = vec![0; stride * self.rows.len()];
        let mut lists = Vec::new();
        for (row, region) in self.rows.iter().zip(words.chunks_mut(stride)) {
            region[..row.history.len()].copy_from_slice(&row.history);
            lists.clear();
            row.lists.write(&mut lists);
            region[lists_at..][..lists.len()].copy_from_slice(&lists);
            if let Some(mask) = row.mask(vocab_size) {
                region[mask_at..].copy_from_slice(&mask);
            }
        }
        [header.side_stride, header.lists_at, header.mask_at] = [stride, lists_at, mask_at].map(|at| at as u32);
        words
    }
}

/// What the passes are bound to.
struct Buffers {
    inputs: Slice,
    rows: Slice,
    side: Slice,
    params: Slice,
    slots: Output,
    logits: Output,
    partials: Output,
    sampled: Output,
}

impl Buffers {
    /// The first pass over the blocks of a vocabulary for so many rows.
    fn scan(&self, rig: &Rig<'_>, vocab_size: usize, rows: usize) -> Dispatch<'_> {
        let arguments = vec![
            ("inputs", &self.inputs),
            ("slots", &self.slots.slice),
            ("rows", &self.rows),
            ("side", &self.side),
            ("logits", &self.logits.slice),
            ("partials", &self.partials.slice),
            ("params", &self.params),
        ];
        Dispatch {
            variant: kernel::scan_variant(&rig.gpu.profile),
            arguments,
            grid: kernel::scan_grid(vocab_size, rows),
        }
    }

    /// The second.
    fn pick(&self, rig: &Rig<'_>, vocab_size: usize, rows: usize) -> Dispatch<'_> {
        let arguments = vec![
            ("inputs", &self.inputs),
            ("slots", &self.slots.slice),
            ("rows", &self.rows),
            ("logits", &self.logits.slice),
            ("partials", &self.partials.slice),
            ("sampled", &self.sampled.slice),
            ("params", &self.params),
        ];
        Dispatch {
            variant: kernel::pick_variant(vocab_size, &rig.gpu.profile),
            arguments,
            grid: kernel::row_grid(rows),
        }
    }

    /// The third.
    fn logprobs(&self, rig: &Rig<'_>, vocab_size: usize, rows: usize) -> Dispatch<'_> {
        let arguments = vec![
            ("inputs", &self.inputs),
            ("slots", &self.slots.slice),
            ("logits", &self.logits.slice),
            ("results", &self.sampled.slice),
            ("params", &self.params),
        ];
        Dispatch {
            variant: kernel::logprobs_variant(vocab_size, &rig.gpu.profile),
            arguments,
            grid: kernel::row_grid(rows),
        }
    }
}

/// Runs the passes.
///
/// # Errors
/// The device failed, two runs differ, or memory around an output was written.
pub fn run(rig: &Rig<'_>, case: &Case) -> Result<Outputs, String> {
    let vocab_size = case.logits[0].len();
    let block_count = vocab_size.div_ceil(VOCAB_BLOCK);
    let count = case.rows.len();
    let mut result_entries = count * ENTRIES_PER_SAMPLE;
    let mut entries: Vec<[u32; 4]> = Vec::with_capacity(count);
    for (row, index) in case.rows.iter().zip(0..) {
        let at = if row.wants() == NO_LOGPROBS { NONE } else { result_entries as u32 };
        entries.push([index, index, row.scored.unwrap_or(NONE), at]);
        result_entries += logprob_entries(row.wants(), vocab_size as u32) as usize;
    }
    let mut header = StepHeader { sample_count: count as u32, ..Default::default() };
    let side = case.side(&mut header);
    let rows: Vec<[u32; 4]> = case.rows.iter().enumerate().map(|(i, row)| [0, i as u32, row.position, 0]).collect();
    let model_logits = case.logits.concat();
    let params = SampleParams {
        vocab_size: vocab_size as u32,
        // Rows share their logits by a stride of zero.
        logits_stride: if case.logits.len() == 1 { 0 } else { vocab_size as u32 },
        processed_at: model_logits.len() as u32,
        processed_stride: vocab_size as u32,
        block_count: block_count as u32,
        first_sample: 0,
        partials_stride: block_count as u32,
        reserved: 0,
    };
    let states: Vec<SeqState> = case.rows.iter().map(Row::state).collect();
    let unwritten = vec![f32::from_bits(u32::MAX); count * vocab_size];
    let buffers = Buffers {
        inputs: rig.step_inputs(&header, &entries).map_err(failed)?,
        logits: rig.output(&[&model_logits[..], &unwritten].concat()).map_err(failed)?,
        rows: rig.input(&rows).map_err(failed)?,
        side: rig.input(&side).map_err(failed)?,
        params: rig.params(&params).map_err(failed)?,
        slots: rig.output(&states).map_err(failed)?,
        partials: rig.output(&vec![u32::MAX; count * block_count * PARTIAL_BYTES / 4]).map_err(failed)?,
        sampled: rig.output(&vec![0u32; result_entries * 2]).map_err(failed)?,
    };
    // With a row of padding, as a bucket has it.
    let mut dispatches = vec![buffers.scan(rig, vocab_size, count), buffers.pick(rig, vocab_size, count + 1)];
    if case.rows.iter().any(|row| row.wants() != NO_LOGPROBS) {
        dispatches.push(buffers.logprobs(rig, vocab_size, count + 1));
    }
    let found = rig.run(&dispatches, &[&buffers.sampled, &buffers.slots, &buffers.logits])?;
    let (samples, rest) = found[0].split_at(count * ENTRIES_PER_SAMPLE * 2);
    let mut rest: &[[u32; 2]] = bytemuck::cast_slice(rest);
    let entries = case.rows.iter().map(|row| {
        let (own, after) = rest.split_at(logprob_entries(row.wants(), vocab_size as u32) as usize);
        rest = after;
        own.to_vec()
    });
    Ok(Outputs {
        entries: entries.collect(),
        sampled: bytemuck::cast_slice(samples).to_vec(),
        states: bytemuck::cast_slice(&found[1]).to_vec(),
        processed: bytemuck::cast_slice(&found[2][model_logits.len()..])
            .chunks(vocab_size)
            .map(<[f32]>::to_vec)
            .collect(),
    })
}
