//! Runs step plans on the CPU with the twins: same plans, same block tables, same steps as on the device.
//!
//! A plan is computed inside [`submit`](ModelRunner::submit); its result waits for [`poll`](ModelRunner::poll).
//! Because speed does not matter here, every promise a plan makes is checked, and a broken one is
//! [`RunError::Bug`]: limits, owners of slots, positions, KV that was never written, shared blocks that are written.

use super::advance::advance;
use super::kv::PagedKv;
use super::kv_precision::KvPrecision;
use super::model::{ReferenceModel, Row, Trace};
use super::slot::{self, Slot};
use super::{sample, score};
use crate::base::{SeqId, SlotId, TokenId};
use crate::error::{Error, Result};
use crate::model::files::ModelFiles;
use crate::runner::move_rules::MoveRules;
use crate::runner::{Capacity, ModelRunner, RunError, SampledToken, StepResult, TokenScore, Wait};
use crate::sched::plan::StepPlan;
use std::collections::VecDeque;
use std::time::Instant;

/// Sizes of a [`ReferenceRunner`], see [`Capacity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceOptions {
    /// KV blocks.
    pub block_count: u32,
    /// Sequences that run at once.
    pub slot_count: u32,
    /// Token rows in one step.
    pub max_batched_tokens: u32,
    /// Longest sequence; at most the model's context.
    pub max_model_len: u32,
    /// Decode steps in one submission.
    pub max_steps: u16,
}

/// A [`ModelRunner`] without a device, for models small enough to hold in f32.
pub struct ReferenceRunner {
    model: ReferenceModel,
    capacity: Capacity,
    kv: PagedKv,
    move_rules: MoveRules,
    slots: Vec<Option<Slot>>,
    finished: VecDeque<StepResult>,
}

/// A row whose logits are sampled.
struct SampleRow {
    /// Among the rows of the step.
    row: usize,
    slot: SlotId,
}

impl ReferenceRunner {
    /// Decodes the weights of `files` and makes room for the KV, which is kept in f64.
    ///
    /// # Errors
    /// A size is zero or too large for the model, or a tensor cannot be read.
    pub fn new(files: &ModelFiles, options: ReferenceOptions) -> Result<Self> {
        let ReferenceOptions { block_count, slot_count, max_batched_tokens, max_model_len, max_steps } = options;
        for (size, name) in [
            (block_count, "block_count"),
            (slot_count, "slot_count"),
            (max_batched_tokens, "max_batched_tokens"),
            (max_model_len, "max_model_len"),
            (u32::from(max_steps), "max_steps"),
        ] {
            if size == 0 {
                return Err(Error::config(format!("{name} is 0, but must be at least 1")));
            }
        }
        let context = files.spec.max_position_embeddings;
        if max_model_len as usize > context {
            return Err(Error::config(format!("max_model_len is {max_model_len}, but the model ends at {context}")));
        }
        let model = ReferenceModel::load(files, max_model_len as usize)?;
        let capacity = Capacity {
            block_count,
            slot_count,
            max_batched_tokens,
            max_model_len,
            max_steps,
            vocab_size: model.spec.vocab_size as u32,
            host_blocks: 0,
            logprob_entries: 1 << 20,
            window: model.spec.longest_window().map(|window| u32::try_from(window).unwrap_or(u32::MAX)),
        };
        Ok(Self {
            move_rules: MoveRules::new(&capacity),
            kv: PagedKv::new(&model.spec, block_count as usize, slot_count as usize, KvPrecision::F64),
            slots: (0..slot_count).map(|_| None).collect(),
            finished: VecDeque::new(),
            capacity,
            model,
        })
    }

    /// The same runner with KV entries rounded to `precision` when they are stored.
    pub fn with_kv_precision(mut self, precision: KvPrecision) -> Self {
        self.kv.set_precision(precision);
        self
    }

    /// The same runner with room for `count` KV blocks on the host.
    pub fn with_host_blocks(mut self, count: u32) -> Self {
        self.capacity.host_blocks = count;
        self.move_rules = MoveRules::new(&self.capacity);
        self.kv.set_host_blocks(count as usize);
        self
    }

    /// Logits of every position of `tokens`, computed in one piece without paging.
    ///
    /// # Errors
    /// A token is outside the vocabulary, or there are more than `max_model_len`.
    pub fn logits(&mut self, tokens: &[TokenId]) -> Result<Vec<Vec<f64>>> {
        Ok(self.trace(tokens)?.logits)
    }

    /// [`logits`](Self::logits) with everything on the way to them.
    ///
    /// # Errors
    /// As [`logits`](Self::logits).
    pub fn trace(&mut self, tokens: &[TokenId]) -> Result<Trace> {
        self.model.trace(tokens, self.kv.precision())
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<StepResult, String> {
        self.check_limits(plan)?;
        self.move_rules.check(plan)?;
        self.move_blocks(plan)?;
        self.prepare(plan)?;
        let mut result = StepResult { epoch: plan.epoch, ..StepResult::default() };
        self.first_step(plan, &mut result)?;
        for step in 1..plan.steps {
            let (mut rows, mut samples) = (Vec::new(), Vec::new());
            self.add_decode_rows(plan, step, &mut rows, &mut samples)?;
            let normed = self.compute(&rows)?;
            self.sample(&rows, &samples, &normed, &mut result)?;
        }
        result.scores.sort_by_key(|score| (score.seq, score.position));
        Ok(result)
    }

    fn check_limits(&self, plan: &StepPlan) -> Result<(), String> {
        let Capacity { max_batched_tokens, max_steps, .. } = self.capacity;
        if plan.token_count() > max_batched_tokens as usize {
            return Err(format!("{} rows exceed {max_batched_tokens}", plan.token_count()));
        }
        if plan.steps == 0 || plan.steps > max_steps || plan.steps > 1 && !plan.prefill.is_empty() {
            return Err(format!("{} steps with {} chunks (at most {max_steps})", plan.steps, plan.prefill.len()));
        }
        let chunk_tokens: usize = plan.prefill.iter().map(|chunk| chunk.len as usize).sum();
        if chunk_tokens != plan.prefill_tokens.len() {
            return Err(format!("chunks of {chunk_tokens} tokens come with {}", plan.prefill_tokens.len()));
        }
        let mut slots: Vec<SlotId> = plan.prefill.iter().map(|chunk| chunk.slot).collect();
        slots.extend(plan.decode.iter().map(|row| row.slot));
        slots.sort();
        match slots.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("slot {} is named twice", pair[0])),
            None => Ok(()),
        }
    }

    /// Before anything else, so that what is saved is what earlier plans left.
    fn move_blocks(&mut self, plan: &StepPlan) -> Result<(), String> {
        plan.saves.iter().try_for_each(|save| self.kv.save_block(save.block, save.host))?;
        plan.loads.iter().try_for_each(|load| self.kv.load_block(load.host, load.block))?;
        plan.copies.iter().try_for_each(|copy| self.kv.copy_block(copy.source, copy.target))
    }

    /// Owners and tables, before anything runs.
    fn prepare(&mut self, plan: &StepPlan) -> Result<(), String> {
        let slot_count = self.slots.len();
        let check = |slot: SlotId| match slot.index() < slot_count {
            true => Ok(slot.index()),
            false => Err(format!("slot {slot} of {slot_count}")),
        };
        for &slot in &plan.closed_slots {
            self.slots[check(slot)?] = None;
            self.kv.clear_table(slot.index());
        }
        for (init, history) in plan.new_owners() {
            let index = check(init.slot)?;
            self.kv.clear_table(index);
            self.slots[index] = Some(Slot::new(init, history, self.capacity.vocab_size as usize));
        }
        for (row, mask) in plan.slot_masks() {
            match &mut self.slots[check(row.slot)?] {
                Some(slot) if slot.seq == row.seq => slot.set_mask(mask),
                _ => return Err(format!("a mask for {}, which does not own slot {}", row.seq, row.slot)),
            }
        }
        for update in &plan.table_updates {
            let index = check(update.slot)?;
            if self.slots[index].is_none() {
                return Err(format!("table of slot {}, which nobody owns", update.slot));
            }
            self.kv.set_table(index, update.index as usize, update.block)?;
        }
        Ok(())
    }

    fn first_step(&mut self, plan: &StepPlan, result: &mut StepResult) -> Result<(), String> {
        let (mut rows, mut samples) = (Vec::new(), Vec::new());
        for (chunk, tokens) in plan.chunks() {
            // Who decodes may go back to known tokens: those that a guide leaves no choice about.
            let progress = self.slot(chunk.slot, chunk.seq)?.progress;
            let goes_on = progress.is_none_or(|progress| {
                !progress.stopped && progress.position == chunk.start && tokens.first() == Some(&progress.token)
            });
            if tokens.is_empty() || !goes_on {
                return Err(format!("a chunk of {} tokens for {} with {progress:?}", tokens.len(), chunk.seq));
            }
            if let Some(slot) = &mut self.slots[chunk.slot.index()] {
                slot.progress = None;
            }
            for (offset, &token) in tokens.iter().enumerate() {
                rows.push(Row { token, position: chunk.start as usize + offset, slot: chunk.slot.index() });
            }
            if chunk.last {
                samples.push(SampleRow { row: rows.len() - 1, slot: chunk.slot });
            }
        }
        self.add_decode_rows(plan, 0, &mut rows, &mut samples)?;
        let normed = self.compute(&rows)?;
        self.score(plan, &normed, result)?;
        self.sample(&rows, &samples, &normed, result)
    }

    /// Adds the rows whose slots have not stopped before step number `step` of the plan.
    fn add_decode_rows(
        &self,
        plan: &StepPlan,
        step: u16,
        rows: &mut Vec<Row>,
        samples: &mut Vec<SampleRow>,
    ) -> Result<(), String> {
        for decode in &plan.decode {
            let Some(progress) = self.slot(decode.slot, decode.seq)?.progress else {
                return Err(format!("{} decodes before its last chunk", decode.seq));
            };
            if progress.stopped {
                continue;
            }
            let planned = decode.position + u32::from(step);
            if progress.position != planned {
                return Err(format!("{} decodes at {planned} but stands at {}", decode.seq, progress.position));
            }
            samples.push(SampleRow { row: rows.len(), slot: decode.slot });
            rows.push(Row { token: progress.token, position: progress.position as usize, slot: decode.slot.index() });
        }
        Ok(())
    }

    /// What the head reads, for each of `rows`.
    fn compute(&mut self, rows: &[Row]) -> Result<Vec<f64>, String> {
        let Capacity { vocab_size, max_model_len, .. } = self.capacity;
        for row in rows {
            if row.token >= vocab_size || row.position >= max_model_len as usize {
                return Err(format!("{row:?} is outside {vocab_size} tokens or {max_model_len} positions"));
            }
            self.kv.claim(row)?;
            if let Some(slot) = &mut self.slots[row.slot] {
                slot.write(row.position, row.token);
            }
        }
        rows.iter().try_for_each(|row| self.kv.check_context(row))?;
        Ok(self.model.forward(rows, &mut self.kv, &mut |_, _| ()))
    }

    fn score(&self, plan: &StepPlan, normed: &[f64], result: &mut StepResult) -> Result<(), String> {
        let mut first_row = 0;
        for (chunk, tokens) in plan.chunks() {
            let wants = self.slot(chunk.slot, chunk.seq)?.sampling.prompt_logprobs;
            let following = tokens[1..].iter().copied().chain(chunk.next_token);
            for (offset, token) in following.enumerate().take_while(|_| chunk.score) {
                let logits = self.row_logits(normed, first_row + offset);
                let logprob = score::logprob(&logits, token);
                let position = chunk.start + offset as u32 + 1;
                let report = slot::report(&logits, token, wants, result).unwrap_or_default();
                let (rank, top) = (report.rank, report.top);
                result.scores.push(TokenScore { seq: chunk.seq, position, logprob, rank, top });
            }
            first_row += tokens.len();
        }
        Ok(())
    }

    fn sample(
        &mut self,
        rows: &[Row],
        samples: &[SampleRow],
        normed: &[f64],
        result: &mut StepResult,
    ) -> Result<(), String> {
        for &SampleRow { row, slot } in samples {
            let logits = self.row_logits(normed, row);
            let position = rows[row].position as u32;
            let state = self.slots[slot.index()].as_mut().ok_or_else(|| format!("slot {slot} lost its owner"))?;
            let token = sample::pick(&logits, &state.request(position as usize)?, position + 1);
            let token = token.map(|draw| draw.token);
            state.sampled(advance(position, token.ok(), &state.sampling, state.position_limit));
            let wants = state.sampling.logprobs;
            let logprob = token.ok().and_then(|token| slot::report(&logits, token, wants, result));
            result.tokens.push(SampledToken { seq: state.seq, slot, token, logprob });
        }
        Ok(())
    }

    /// Logits in the type the sampler reads.
    fn row_logits(&self, normed: &[f64], row: usize) -> Vec<f32> {
        let width = self.model.spec.hidden_size;
        self.model.logits(&normed[row * width..][..width]).iter().map(|&logit| logit as f32).collect()
    }

    fn slot(&self, slot: SlotId, seq: SeqId) -> Result<&Slot, String> {
        match self.slots.get(slot.index()) {
            Some(Some(state)) if state.seq == seq => Ok(state),
            Some(Some(state)) => Err(format!("slot {slot} belongs to {}, not to {seq}", state.seq)),
            _ => Err(format!("{seq} in slot {slot}, which nobody owns")),
        }
    }
}

impl ModelRunner for ReferenceRunner {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), RunError> {
        let started = Instant::now();
        let mut result = self.execute(plan).map_err(|why| RunError::Bug(format!("{why}, in plan {plan}")))?;
        result.micros = u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX);
        self.finished.push_back(result);
        Ok(())
    }

    fn poll(&mut self, _: Wait, result: &mut StepResult) -> Result<bool, RunError> {
        match self.finished.pop_front() {
            Some(finished) => {
                self.move_rules.report(finished.epoch);
                *result = finished;
                Ok(true)
            }
            None => Ok(false),
        }
    }
}
