//! The step inputs: one upload a submission. Mirrors `shaders/lib/step_inputs.wgsl` and `shaders/lib/seq_state.wgsl`
//! (a test compares the layouts).

use crate::base::{SeqId, SlotId};
use crate::sampling::SamplingRow;
use crate::sched::plan::StepPlan;
use bytemuck::{Pod, Zeroable};

/// Stands for "no such thing" in every device table.
pub const NONE: u32 = u32::MAX;
/// The sampler's mark for a row whose logits were not finite.
pub const BAD_LOGITS: u32 = u32::MAX - 1;
/// Set in an update's address if it counts block table entries instead of slot words.
const TABLE_ADDRESS: u32 = 1 << 31;

/// First bytes of the step inputs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct StepHeader {
    /// Token rows: decode rows first, then prompt chunks.
    pub row_count: u32,
    /// Rows that take token and position from their slot.
    pub decode_count: u32,
    /// Attention tiles over prompt rows.
    pub tile_count: u32,
    /// Rows whose logits are wanted.
    pub sample_count: u32,
    /// First entry of the rows.
    pub rows_at: u32,
    /// First entry of the tiles.
    pub tiles_at: u32,
    /// First entry of the samples.
    pub samples_at: u32,
    /// First entry of the updates.
    pub updates_at: u32,
    /// Entries of updates, two changes each.
    pub update_count: u32,
    /// Block table entries of a slot.
    pub table_stride: u32,
    /// Room.
    pub reserved: [u32; 6],
}

/// State of a slot on the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct SeqState {
    /// Next input token.
    pub token: u32,
    /// Its position.
    pub position: u32,
    /// Index of the first token that must not be generated.
    pub position_limit: u32,
    /// 1 after the last token.
    pub done: u32,
    /// Tokens of the prompt.
    pub prompt_len: u32,
    /// Keeps what follows aligned.
    pub reserved: [u32; 3],
    /// How to sample, and when to stop.
    pub sampling: SamplingRow,
}

const STATE_WORDS: usize = size_of::<SeqState>() / 4;

/// Whom a sample belongs to, in the order in which the device reports them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleOwner {
    /// Sequence.
    pub seq: SeqId,
    /// Its slot.
    pub slot: SlotId,
    /// Position of the scored token, or `None` if a token was sampled.
    pub scored: Option<u32>,
}

/// Builds the bytes of one plan; its memory is reused from plan to plan.
#[derive(Debug, Default)]
pub struct StepInputs {
    words: Vec<[u32; 4]>,
    /// Owners of the plan's samples.
    pub owners: Vec<SampleOwner>,
    /// What the bytes begin with.
    pub header: StepHeader,
    /// Largest context of a decode row by the end of the plan.
    pub decode_context: usize,
}

const HEADER_ENTRIES: usize = size_of::<StepHeader>() / 16;

impl StepInputs {
    /// Lays out `plan`. `table_stride` is the number of block table entries of a slot, `tile_queries` the most prompt rows
    /// that one attention tile covers.
    pub fn build(&mut self, plan: &StepPlan, table_stride: usize, tile_queries: usize) {
        self.words.clear();
        self.owners.clear();
        self.words.resize(HEADER_ENTRIES, [0; 4]);
        let entry = |words: &Vec<[u32; 4]>| (words.len() - HEADER_ENTRIES) as u32;
        let mut header = StepHeader { table_stride: table_stride as u32, ..Default::default() };

        header.rows_at = entry(&self.words);
        self.decode_context = 0;
        for row in &plan.decode {
            self.words.push([NONE, row.slot.0, NONE, 0]);
            self.decode_context = self.decode_context.max(row.position as usize + usize::from(plan.steps));
        }
        for (chunk, tokens) in plan.chunks() {
            let rows = tokens.iter().zip(chunk.start..).map(|(&token, position)| [token, chunk.slot.0, position, 0]);
            self.words.extend(rows);
        }
        header.decode_count = plan.decode.len() as u32;
        header.row_count = entry(&self.words) - header.rows_at;

        header.tiles_at = entry(&self.words);
        let mut first_row = plan.decode.len() as u32;
        for chunk in &plan.prefill {
            for offset in (0..chunk.len).step_by(tile_queries) {
                let count = (chunk.len - offset).min(tile_queries as u32);
                self.words.push([first_row + offset, count, chunk.slot.0, 0]);
            }
            first_row += chunk.len;
        }
        header.tile_count = entry(&self.words) - header.tiles_at;

        header.samples_at = entry(&self.words);
        for (index, row) in plan.decode.iter().enumerate() {
            self.words.push([index as u32, row.slot.0, NONE, 0]);
            self.owners.push(SampleOwner { seq: row.seq, slot: row.slot, scored: None });
        }
        let mut first_row = plan.decode.len() as u32;
        for (chunk, tokens) in plan.chunks() {
            let owner = |scored| SampleOwner { seq: chunk.seq, slot: chunk.slot, scored };
            if chunk.score {
                let targets = tokens.iter().skip(1).copied().chain(chunk.next_token);
                for (index, target) in (0..).zip(targets) {
                    self.words.push([first_row + index, chunk.slot.0, target, 0]);
                    self.owners.push(owner(Some(chunk.start + index + 1)));
                }
            }
            if chunk.last {
                self.words.push([first_row + chunk.len - 1, chunk.slot.0, NONE, 0]);
                self.owners.push(owner(None));
            }
            first_row += chunk.len;
        }
        header.sample_count = entry(&self.words) - header.samples_at;

        header.updates_at = entry(&self.words);
        let mut half: Option<[u32; 2]> = None;
        let words = &mut self.words;
        let mut change = |address: u32, value: u32| match half.take() {
            Some([first, word]) => words.push([first, word, address, value]),
            None => half = Some([address, value]),
        };
        for init in &plan.new_slots {
            let state = SeqState {
                token: 0,
                position: 0,
                position_limit: init.position_limit,
                done: 0,
                prompt_len: init.prompt_len,
                reserved: [0; 3],
                sampling: init.sampling,
            };
            let words: &[u32] = bytemuck::cast_slice(std::slice::from_ref(&state));
            for (offset, &word) in words.iter().enumerate() {
                change((init.slot.index() * STATE_WORDS + offset) as u32, word);
            }
        }
        for update in &plan.table_updates {
            let index = update.slot.index() * table_stride + update.index as usize;
            change(TABLE_ADDRESS | index as u32, update.block.0);
        }
        if let Some([address, value]) = half {
            self.words.push([address, value, NONE, 0]);
        }
        header.update_count = entry(&self.words) - header.updates_at;

        self.header = header;
        let head: &[[u32; 4]] = bytemuck::cast_slice(std::slice::from_ref(&header));
        self.words[..HEADER_ENTRIES].copy_from_slice(head);
    }

    /// What to upload.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }

    /// Most bytes that any plan within these limits needs.
    pub fn capacity_bytes(rows: usize, slots: usize, table_stride: usize) -> usize {
        // Rows, a tile and a score each, one more sample a slot, and every slot and table entry new.
        let updates = slots * (STATE_WORDS + table_stride);
        (HEADER_ENTRIES + 3 * rows + slots + updates.div_ceil(2)) * 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{BlockId, Epoch};
    use crate::sampling::SamplingParams;
    use crate::sched::plan::{DecodeRow, PrefillChunk, SlotInit, TableUpdate};

    fn section(inputs: &StepInputs, at: u32, count: u32) -> &[[u32; 4]] {
        &inputs.words[HEADER_ENTRIES + at as usize..][..count as usize]
    }

    #[test]
    fn rows_tiles_samples_and_updates_follow_the_plan() {
        let sampling = SamplingRow::new(&SamplingParams::default(), 7, &[2]);
        let chunk = |slot: u32, start, len, last| PrefillChunk {
            seq: SeqId(slot.into()),
            slot: SlotId(slot),
            start,
            len,
            last,
            score: !last,
            next_token: (!last).then_some(99),
        };
        let plan = StepPlan {
            epoch: Epoch(3),
            steps: 1,
            prefill: vec![chunk(4, 10, 3, false), chunk(5, 0, 2, true)],
            prefill_tokens: vec![11, 12, 13, 21, 22],
            decode: vec![DecodeRow { seq: SeqId(1), slot: SlotId(1), position: 300 }],
            new_slots: vec![SlotInit {
                slot: SlotId(5),
                seq: SeqId(5),
                sampling,
                lists: None,
                prompt_len: 0,
                history_len: 0,
                position_limit: 64,
            }],
            table_updates: vec![TableUpdate { slot: SlotId(5), index: 1, block: BlockId(9) }],
            ..Default::default()
        };
        let mut inputs = StepInputs::default();
        inputs.build(&plan, 32, 2);
        let h = inputs.header;
        assert_eq!((h.row_count, h.decode_count, h.tile_count, h.sample_count), (6, 1, 3, 5));
        let rows = section(&inputs, h.rows_at, h.row_count);
        assert_eq!(rows[0], [NONE, 1, NONE, 0]);
        assert_eq!(rows[3], [13, 4, 12, 0]);
        assert_eq!(rows[5], [22, 5, 1, 0]);
        assert_eq!(section(&inputs, h.tiles_at, 3), [[1, 2, 4, 0], [3, 1, 4, 0], [4, 2, 5, 0]]);
        let samples = [[0, 1, NONE, 0], [1, 4, 12, 0], [2, 4, 13, 0], [3, 4, 99, 0], [5, 5, NONE, 0]];
        assert_eq!(section(&inputs, h.samples_at, 5), samples);
        assert_eq!(inputs.owners[3].scored, Some(13));
        let updates = section(&inputs, h.updates_at, h.update_count);
        assert_eq!(updates.len(), (STATE_WORDS + 1).div_ceil(2));
        assert_eq!(updates[1], [5 * 32 + 2, 64, 5 * 32 + 3, 0]);
        assert_eq!(updates.last(), Some(&[TABLE_ADDRESS | (5 * 32 + 1), 9, NONE, 0]));
        assert_eq!(inputs.decode_context, 301);
        assert!(inputs.bytes().len() <= StepInputs::capacity_bytes(6, 6, 32));
    }
}
