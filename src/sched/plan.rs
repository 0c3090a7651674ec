//! The step plan: the value at which scheduler, layout, runner and tests meet.
//!
//! A plan says which tokens one submission computes and where their KV goes. It holds no GPU type, can be printed,
//! compared and replayed, and its vectors are reused from step to step.

use crate::base::{BlockId, Epoch, HostBlockId, SeqId, SlotId, TokenId};
use crate::sampling::{SamplingLists, SamplingRow};
use std::sync::Arc;

/// What one submission does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    /// Number of this submission.
    pub epoch: Epoch,
    /// Decode steps the device runs by itself; above 1 only if `prefill` is empty.
    pub steps: u16,
    /// Pieces of prompts, at most one per sequence.
    pub prefill: Vec<PrefillChunk>,
    /// The chunks' token ids, one after another.
    pub prefill_tokens: Vec<TokenId>,
    /// Rows that read their token and position from the slot.
    pub decode: Vec<DecodeRow>,
    /// Slots that get a new owner before anything runs.
    pub new_slots: Vec<SlotInit>,
    /// The first tokens of new owners that keep their history, one owner after another: see [`SlotInit::history_len`].
    pub history_tokens: Vec<TokenId>,
    /// Slots whose next token is guided; `steps` is 1 then.
    pub masks: Vec<MaskRow>,
    /// Their masks, one after another, each of [`mask_words`](crate::sampling::lists::mask_words) words. The scheduler leaves them to
    /// its caller, who knows what they are.
    pub mask_words: Vec<u32>,
    /// Block table entries that change before anything runs, after `new_slots`.
    pub table_updates: Vec<TableUpdate>,
    /// Blocks whose content goes to the host before anything is overwritten: swapped-out sequences, evicted prefixes. The
    /// host has it when the result of this submission is reported.
    pub saves: Vec<BlockSave>,
    /// Blocks that are filled from the host, after `saves`. The host's content was saved by a submission whose result has
    /// been reported.
    pub loads: Vec<BlockLoad>,
    /// Whole-block copies on the device, after `loads` and before anything is computed (copy-on-write).
    pub copies: Vec<BlockCopy>,
    /// Slots whose owner left; nothing in this plan or a later one names that owner in them again.
    pub closed_slots: Vec<SlotId>,
}

/// A run of known tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillChunk {
    /// Owner.
    pub seq: SeqId,
    /// Its slot.
    pub slot: SlotId,
    /// Position of the first token.
    pub start: u32,
    /// Number of tokens.
    pub len: u32,
    /// Whether this chunk reaches the last known token, so that the next token is sampled from it and the slot
    /// goes on in decode. False for a scored prompt that may not generate.
    pub last: bool,
    /// Whether the log-probability of each following token is wanted (perplexity, prompt log-probabilities).
    pub score: bool,
    /// The known token after the chunk, which the last row is scored against; unused without `score`, and
    /// `None` where the sequence ends with the chunk.
    pub next_token: Option<TokenId>,
}

/// One sequence that decodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeRow {
    /// Owner.
    pub seq: SeqId,
    /// Its slot.
    pub slot: SlotId,
    /// Position of the row's (first) input token: all KV before it is valid.
    pub position: u32,
}

/// A slot whose next token is guided by a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskRow {
    /// Owner.
    pub seq: SeqId,
    /// Its slot.
    pub slot: SlotId,
}

/// A new owner of a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotInit {
    /// The slot.
    pub slot: SlotId,
    /// Its new owner.
    pub seq: SeqId,
    /// Sampling parameters.
    pub sampling: SamplingRow,
    /// Sampling parameters without a fixed size.
    pub lists: Option<Arc<SamplingLists>>,
    /// Tokens of the prompt, the first of the sequence.
    pub prompt_len: u32,
    /// Where the owner [keeps its history](crate::sampling::row::KEEPS_HISTORY): tokens whose KV is there already, so that no
    /// chunk will bring them. They stand in [`StepPlan::history_tokens`].
    pub history_len: u32,
    /// Index of the first token that must not be generated: prompt length + max_tokens, at most the context length.
    /// The device stops the row once it has sampled the token at `position_limit - 1`, which never gets KV itself.
    pub position_limit: u32,
}

/// Entry `index` of a slot's block table becomes `block`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableUpdate {
    /// The slot.
    pub slot: SlotId,
    /// Logical block number in the sequence.
    pub index: u32,
    /// Physical block.
    pub block: BlockId,
}

/// Copies all layers of a block to the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockSave {
    /// Read from here,
    pub block: BlockId,
    /// write to here.
    pub host: HostBlockId,
}

/// Copies all layers of a block from the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockLoad {
    /// Read from here,
    pub host: HostBlockId,
    /// write to here.
    pub block: BlockId,
}

/// Copies all layers of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockCopy {
    /// Read from here,
    pub source: BlockId,
    /// write to here.
    pub target: BlockId,
}

impl StepPlan {
    /// Empties the plan and keeps its memory.
    pub fn clear(&mut self) {
        self.steps = 1;
        self.prefill.clear();
        self.prefill_tokens.clear();
        self.decode.clear();
        self.new_slots.clear();
        self.history_tokens.clear();
        self.masks.clear();
        self.mask_words.clear();
        self.table_updates.clear();
        self.saves.clear();
        self.loads.clear();
        self.copies.clear();
        self.closed_slots.clear();
    }

    /// Whether the device has nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.prefill.is_empty() && self.decode.is_empty()
    }

    /// Rows of the first step.
    pub fn token_count(&self) -> usize {
        self.prefill_tokens.len() + self.decode.len()
    }

    /// Each new owner with the history that no chunk brings.
    pub fn new_owners(&self) -> impl Iterator<Item = (&SlotInit, &[TokenId])> {
        let mut rest = self.history_tokens.as_slice();
        self.new_slots.iter().map(move |init| {
            let (history, after) = rest.split_at(init.history_len as usize);
            rest = after;
            (init, history)
        })
    }

    /// Each guided slot with its mask; none before [`mask_words`](Self::mask_words) is filled.
    pub fn slot_masks(&self) -> impl Iterator<Item = (&MaskRow, &[u32])> {
        let words = self.mask_words.len() / self.masks.len().max(1);
        self.masks.iter().zip(self.mask_words.chunks(words.max(1)))
    }

    /// Each chunk with its tokens.
    pub fn chunks(&self) -> impl Iterator<Item = (&PrefillChunk, &[TokenId])> {
        let mut rest = self.prefill_tokens.as_slice();
        self.prefill.iter().map(move |chunk| {
            let (tokens, after) = rest.split_at(chunk.len as usize);
            rest = after;
            (chunk, tokens)
        })
    }
}

impl std::fmt::Display for StepPlan {
    /// One line a plan, for golden tests and traces.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{} x{}", self.epoch, self.steps)?;
        for SlotInit { slot, seq, .. } in &self.new_slots {
            write!(f, " open {slot}={seq}")?;
        }
        for TableUpdate { slot, index, block } in &self.table_updates {
            write!(f, " table {slot}[{index}]={block}")?;
        }
        for BlockSave { block, host } in &self.saves {
            write!(f, " save {block}->h{host}")?;
        }
        for BlockLoad { host, block } in &self.loads {
            write!(f, " load h{host}->{block}")?;
        }
        for BlockCopy { source, target } in &self.copies {
            write!(f, " copy {source}->{target}")?;
        }
        for chunk in &self.prefill {
            let end = chunk.start + chunk.len;
            write!(f, " prefill {}@{}..{end}{}", chunk.seq, chunk.start, if chunk.last { "!" } else { "" })?;
        }
        for DecodeRow { seq, position, .. } in &self.decode {
            write!(f, " decode {seq}@{position}")?;
        }
        for MaskRow { seq, .. } in &self.masks {
            write!(f, " mask {seq}")?;
        }
        for slot in &self.closed_slots {
            write!(f, " close {slot}")?;
        }
        Ok(())
    }
}
