//! The step inputs: one upload a submission. Mirrors `shaders/lib/step_inputs.wgsl` and `shaders/lib/seq_state.wgsl`
//! (a test compares the layouts).

use super::SideLayout;
use crate::base::{SeqId, SlotId};
use crate::sampling::SamplingRow;
use crate::sampling::row::{MAX_DEVICE_LOGPROBS, NO_LOGPROBS, logprob_entries};
use crate::sched::plan::StepPlan;
use bytemuck::{Pod, Zeroable};

/// Stands for "no such thing" in every device table.
pub const NONE: u32 = u32::MAX;
/// The sampler's mark for a row whose logits were not finite.
pub const BAD_LOGITS: u32 = u32::MAX - 1;
/// The sampler's mark for a row whose request leaves no token.
pub const NOTHING_ALLOWED: u32 = u32::MAX - 2;
/// Entries of log-probabilities (two words each) that take the room of one reported sample.
pub const ENTRIES_PER_SAMPLE: usize = 4;
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
    /// Words of a slot's region in the side buffer.
    pub side_stride: u32,
    /// First word of the lists in such a region.
    pub lists_at: u32,
    /// First word of the mask there.
    pub mask_at: u32,
    /// Room.
    pub reserved: [u32; 3],
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
    /// What it reports of log-probabilities.
    pub report: Option<Report>,
}

/// What a sample reports besides its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Index of its first entry among all of the plan.
    pub first: u32,
    /// How many entries.
    pub count: u32,
    /// How many of them, likeliest first, the request wants.
    pub wanted: u32,
    /// Whether the entries are those of all tokens by id, rather than the wanted ones.
    pub all: bool,
}

/// What the layout of every plan of a runner has in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputShape {
    /// Block table entries of a slot.
    pub table_stride: usize,
    /// The most prompt rows that one attention tile covers.
    pub tile_queries: usize,
    /// The sampler's memory of each slot.
    pub side: SideLayout,
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
    /// Whether some sample reports log-probabilities.
    pub wants_logprobs: bool,
    /// Entries of log-probabilities, two words each, that stand behind [`sample_stride`](Self::sample_stride) samples.
    pub entry_count: usize,
    /// What the owner of each slot wants reported: with sampled tokens, with scored ones.
    wants: Vec<[u32; 2]>,
}

const HEADER_ENTRIES: usize = size_of::<StepHeader>() / 16;

impl StepInputs {
    /// Lays out `plan`. Plans come in the order in which they run: what the owners of slots want reported is remembered.
    pub fn build(&mut self, plan: &StepPlan, shape: &InputShape) {
        let InputShape { table_stride, tile_queries, side } = *shape;
        self.words.clear();
        self.owners.clear();
        self.words.resize(HEADER_ENTRIES, [0; 4]);
        let entry = |words: &Vec<[u32; 4]>| (words.len() - HEADER_ENTRIES) as u32;
        let mut header = StepHeader {
            table_stride: table_stride as u32,
            side_stride: side.stride() as u32,
            lists_at: side.lists_at() as u32,
            mask_at: side.mask_at() as u32,
            ..Default::default()
        };
        for init in &plan.new_slots {
            let slot = init.slot.index();
            self.wants.resize(self.wants.len().max(slot + 1), [NO_LOGPROBS; 2]);
            self.wants[slot] = [init.sampling.logprobs, init.sampling.prompt_logprobs];
        }

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
            self.words.push([index as u32, row.slot.0, NONE, NONE]);
            self.owners.push(SampleOwner { seq: row.seq, slot: row.slot, scored: None, report: None });
        }
        let mut first_row = plan.decode.len() as u32;
        for (chunk, tokens) in plan.chunks() {
            let owner = |scored| SampleOwner { seq: chunk.seq, slot: chunk.slot, scored, report: None };
            if chunk.score {
                let targets = tokens.iter().skip(1).copied().chain(chunk.next_token);
                for (index, target) in (0..).zip(targets) {
                    self.words.push([first_row + index, chunk.slot.0, target, NONE]);
                    self.owners.push(owner(Some(chunk.start + index + 1)));
                }
            }
            if chunk.last {
                self.words.push([first_row + chunk.len - 1, chunk.slot.0, NONE, NONE]);
                self.owners.push(owner(None));
            }
            first_row += chunk.len;
        }
        header.sample_count = entry(&self.words) - header.samples_at;
        self.place_reports(header.samples_at as usize, side.vocab_size);

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

    /// Gives each sample that reports log-probabilities its entries, and says in the sample's last word where they start, counted
    /// from the beginning of the results.
    fn place_reports(&mut self, samples_at: usize, vocab_size: usize) {
        (self.wants_logprobs, self.entry_count) = (false, 0);
        let behind_samples = self.sample_stride() * ENTRIES_PER_SAMPLE;
        for (owner, entry) in self.owners.iter_mut().zip(&mut self.words[HEADER_ENTRIES + samples_at..]) {
            let wants = self.wants.get(owner.slot.index()).copied().unwrap_or_default();
            let wants = wants[usize::from(owner.scored.is_some())];
            if wants == NO_LOGPROBS {
                continue;
            }
            let count = logprob_entries(wants, vocab_size as u32);
            let asked = wants - 1;
            let (wanted, all) = (asked.min(vocab_size as u32), asked > MAX_DEVICE_LOGPROBS.min(vocab_size as u32));
            owner.report = Some(Report { first: self.entry_count as u32, count, wanted, all });
            entry[3] = (behind_samples + self.entry_count) as u32;
            self.entry_count += count as usize;
            self.wants_logprobs = true;
        }
    }

    /// Samples that a step's results have room for, a power of two; entries of log-probabilities follow.
    pub fn sample_stride(&self) -> usize {
        self.owners.len().next_power_of_two()
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
    use crate::sampling::{SamplingParams, TopLogprobs};
    use crate::sched::plan::{DecodeRow, PrefillChunk, SlotInit, TableUpdate};

    fn section(inputs: &StepInputs, at: u32, count: u32) -> &[[u32; 4]] {
        &inputs.words[HEADER_ENTRIES + at as usize..][..count as usize]
    }

    #[test]
    fn rows_tiles_samples_and_updates_follow_the_plan() {
        let asks = SamplingParams {
            logprobs: Some(TopLogprobs::Most(0)),
            prompt_logprobs: Some(TopLogprobs::Most(3)),
            ..Default::default()
        };
        let sampling = SamplingRow::new(&asks, 7, &[2]);
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
        let side = SideLayout { max_context: 64, vocab_size: 100 };
        let shape = InputShape { table_stride: 32, tile_queries: 2, side };
        inputs.build(&plan, &shape);
        let h = inputs.header;
        assert_eq!((h.row_count, h.decode_count, h.tile_count, h.sample_count), (6, 1, 3, 5));
        let rows = section(&inputs, h.rows_at, h.row_count);
        assert_eq!(rows[0], [NONE, 1, NONE, 0]);
        assert_eq!(rows[3], [13, 4, 12, 0]);
        assert_eq!(rows[5], [22, 5, 1, 0]);
        assert_eq!(section(&inputs, h.tiles_at, 3), [[1, 2, 4, 0], [3, 1, 4, 0], [4, 2, 5, 0]]);
        // Five samples take the room of eight; the new slot's reports its rank and no alternatives.
        let samples = [[0, 1, NONE, NONE], [1, 4, 12, NONE], [2, 4, 13, NONE], [3, 4, 99, NONE], [5, 5, NONE, 32]];
        assert_eq!(section(&inputs, h.samples_at, 5), samples);
        assert_eq!(inputs.owners[3].scored, Some(13));
        assert_eq!((inputs.sample_stride(), inputs.wants_logprobs, inputs.entry_count), (8, true, 0));
        let updates = section(&inputs, h.updates_at, h.update_count);
        assert_eq!(updates.len(), (STATE_WORDS + 1).div_ceil(2));
        assert_eq!(updates[1], [5 * 32 + 2, 64, 5 * 32 + 3, 0]);
        assert_eq!(updates.last(), Some(&[TABLE_ADDRESS | (5 * 32 + 1), 9, NONE, 0]));
        assert_eq!(inputs.decode_context, 301);
        assert!(inputs.bytes().len() <= StepInputs::capacity_bytes(6, 6, 32));
        // What the slot's owner wants holds for later plans.
        let scored = PrefillChunk { score: true, next_token: Some(50), ..chunk(5, 2, 2, false) };
        let plan = StepPlan { prefill: vec![scored], prefill_tokens: vec![1, 2], ..Default::default() };
        inputs.build(&plan, &shape);
        assert_eq!(section(&inputs, inputs.header.samples_at, 2), [[0, 5, 2, 8], [1, 5, 50, 11]]);
        assert_eq!(inputs.owners[1].report, Some(Report { first: 3, count: 3, wanted: 3, all: false }));
        assert_eq!(inputs.entry_count, 6);
    }
}
