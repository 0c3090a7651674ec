//! What the sampler reads of a slot besides its state: the tokens so far, the request's lists and its token mask. One region of
//! a buffer for each slot; `shaders/lib/step_inputs.wgsl` has the offsets.

use crate::base::SlotId;
use crate::sampling::lists::{MAX_LIST_WORDS, fill_mask, mask_words};
use crate::sched::plan::StepPlan;

/// Sizes of a slot's region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideLayout {
    /// Positions.
    pub max_context: usize,
    /// Tokens.
    pub vocab_size: usize,
}

impl SideLayout {
    /// Words of a region: history, lists, mask.
    pub const fn stride(&self) -> usize {
        self.mask_at() + mask_words(self.vocab_size)
    }

    /// First word of the lists.
    pub const fn lists_at(&self) -> usize {
        self.max_context
    }

    /// First word of the mask.
    pub const fn mask_at(&self) -> usize {
        self.lists_at() + MAX_LIST_WORDS
    }

    /// Hands what `plan` changes to `write`, as words and where they go in the buffer; `scratch` is overwritten.
    ///
    /// # Errors
    /// Something does not fit; the message says what.
    pub fn changes(
        &self,
        plan: &StepPlan,
        scratch: &mut Vec<u32>,
        mut write: impl FnMut(usize, &[u32]),
    ) -> Result<(), String> {
        let region = |slot: SlotId| slot.index() * self.stride();
        for (init, history) in plan.new_owners() {
            let at = region(init.slot);
            if history.len() > self.max_context {
                return Err(format!("{} tokens of history for a context of {}", history.len(), self.max_context));
            }
            if !history.is_empty() {
                write(at, history);
            }
            let Some(lists) = &init.lists else { continue };
            if lists.words() > MAX_LIST_WORDS {
                return Err(format!("lists of {} words, but {MAX_LIST_WORDS} fit", lists.words()));
            }
            scratch.clear();
            lists.write(scratch);
            write(at + self.lists_at(), scratch);
            if let Some(allowed) = &lists.allowed {
                scratch.clear();
                scratch.resize(mask_words(self.vocab_size), 0);
                fill_mask(scratch, allowed);
                write(at + self.mask_at(), scratch);
            }
        }
        for (row, mask) in plan.slot_masks() {
            if mask.len() != mask_words(self.vocab_size) {
                return Err(format!("a mask of {} words for {} tokens", mask.len(), self.vocab_size));
            }
            write(region(row.slot) + self.mask_at(), mask);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::SeqId;
    use crate::sampling::{SamplingLists, SamplingParams, SamplingRow};
    use crate::sched::plan::{MaskRow, SlotInit};
    use std::sync::Arc;

    #[test]
    fn changes_stay_within_the_region_of_their_slot() {
        let side = SideLayout { max_context: 64, vocab_size: 70 };
        let lists = SamplingLists { early_stops: vec![2], allowed: Some(vec![0, 33, 69]), ..Default::default() };
        let init = |slot, lists: Option<SamplingLists>, history_len| SlotInit {
            slot: SlotId(slot),
            seq: SeqId(7),
            sampling: SamplingRow::new(&SamplingParams::default(), 0, &[]),
            lists: lists.map(Arc::new),
            prompt_len: 3,
            history_len,
            position_limit: 64,
        };
        let mut plan = StepPlan {
            new_slots: vec![init(1, None, 2), init(2, Some(lists), 0), init(0, None, 1)],
            history_tokens: vec![11, 12, 13],
            masks: vec![MaskRow { seq: SeqId(7), slot: SlotId(0) }],
            mask_words: vec![1, 2, 3],
            ..Default::default()
        };
        let changes = |plan: &StepPlan| {
            let mut seen = Vec::new();
            side.changes(plan, &mut Vec::new(), |at, words| seen.push((at, words.to_vec()))).map(|()| seen)
        };
        let stride = 64 + MAX_LIST_WORDS + 3;
        let expected = [
            (stride, vec![11, 12]),
            (2 * stride + 64, vec![0, 1, 0, 2]),
            (2 * stride + 64 + MAX_LIST_WORDS, vec![1, 2, 32]),
            (0, vec![13]),
            (64 + MAX_LIST_WORDS, vec![1, 2, 3]),
        ];
        assert_eq!(changes(&plan).unwrap(), expected);
        plan.mask_words.pop();
        assert!(changes(&plan).unwrap_err().contains("a mask of 2 words for 70 tokens"));
        let long = SamplingLists { early_stops: vec![1; MAX_LIST_WORDS], ..Default::default() };
        plan.new_slots[0].lists = Some(Arc::new(long));
        assert!(changes(&plan).unwrap_err().contains("4099 words, but 4096 fit"));
    }
}
