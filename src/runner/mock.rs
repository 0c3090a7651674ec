//! A runner without a model or a clock. It keeps slots, block tables and KV as a GPU would, and its tokens are a hash
//! of the whole context, read through the block table: whatever goes wrong with blocks, chunks or run-ahead changes a
//! token or is refused as a bug.
//!
//! A KV cell remembers its position, its token and the hash of everything before it, as attention layers do. Cells move
//! with their blocks, to the host and back too. With a window ([`Capacity::window`]) only the last positions are read, and what
//! lies before may be gone, as it may on a device.
//!
//! The rules of requests (masks, lists, token limits) are honoured: a token that may not come gives way to the next that may. A
//! guided token without a mask, or a history that a plan left incomplete, is a bug.
//!
//! Plans take effect in the order of submission; results come later, by a virtual clock that only [`MockRunner::poll`] and
//! [`MockRunner::advance`] move.

mod memory;
mod rules;
#[cfg(test)]
mod tests;

use super::{Capacity, Costs, ModelRunner, RunError, SampledToken, StepResult, TokenScore, Wait};
use crate::base::{Epoch, TokenId};
use crate::sampling::lists::{fill_mask, mask_words};
use crate::sampling::{SamplingLists, SamplingRow};
use crate::sched::plan::StepPlan;
use memory::Memory;
use std::collections::VecDeque;
use std::time::Duration;

/// What a mock pretends.
#[derive(Clone, Debug)]
pub struct MockOptions {
    /// Limits that plans are held to.
    pub capacity: Capacity,
    /// Changes all tokens.
    pub seed: u64,
    /// The token that `eos_per_mille` is about.
    pub eos: TokenId,
    /// Chance of `eos`, in thousandths. At 0 it never comes.
    pub eos_per_mille: u32,
    /// Chance of logits that are not finite, in thousandths.
    pub bad_logits_per_mille: u32,
    /// Virtual time for each prompt token.
    pub prefill_micros: u64,
    /// Virtual time for each block that goes to the host or comes back. Copies on the device cost nothing.
    pub move_micros: u64,
    /// Virtual time for each step.
    pub step_micros: u64,
    /// Virtual time between the end of a submission and its result.
    pub latency_micros: u64,
    /// An injected failure.
    pub fault: Option<Fault>,
}

/// A failure at a given submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device is lost when this plan is handed in.
    LostAtSubmit(Epoch),
    /// The device is lost before this result, and all later ones, can be read.
    LostAtPoll(Epoch),
    /// The runner reports a bug when this plan is handed in.
    BugAtSubmit(Epoch),
}

impl Default for MockOptions {
    /// A small, healthy device whose sequences end by length.
    fn default() -> Self {
        Self {
            capacity: Capacity {
                block_count: 64,
                slot_count: 8,
                max_batched_tokens: 256,
                max_model_len: 512,
                max_steps: 16,
                vocab_size: 1000,
                host_blocks: 0,
                window: None,
                logprob_entries: 1 << 16,
            },
            seed: 0,
            eos: 0,
            eos_per_mille: 0,
            bad_logits_per_mille: 0,
            prefill_micros: 10,
            move_micros: 20,
            step_micros: 1000,
            latency_micros: 100,
            fault: None,
        }
    }
}

impl MockOptions {
    /// The token that follows `context`, or `None` for bad logits.
    fn next_token(&self, context: Context, sampling: &SamplingRow) -> Option<TokenId> {
        let mut hash = context;
        if sampling.temperature > 0.0 {
            hash = hash.then(sampling.seed_low).then(sampling.seed_high);
        }
        let (chance, pick) = ((hash.0 >> 32) % 1000, hash.0 as u32);
        let vocab_size = self.capacity.vocab_size;
        if chance < u64::from(self.bad_logits_per_mille) {
            return None;
        }
        if chance < u64::from(self.bad_logits_per_mille + self.eos_per_mille) {
            return Some(self.eos);
        }
        let token = pick % vocab_size;
        Some(if token == self.eos { (token + 1) % vocab_size } else { token })
    }

    /// What any correct schedule generates after `prompt`: up to and with the first of `stop_tokens`, at most up to
    /// index `limit - 1` of the sequence, short of bad logits. Computed without blocks, slots or steps.
    pub fn continuation(
        &self,
        prompt: &[TokenId],
        sampling: &SamplingRow,
        stop_tokens: &[TokenId],
        limit: usize,
    ) -> Vec<TokenId> {
        self.continuation_with(prompt, sampling, &SamplingLists::default(), stop_tokens, limit, &mut |_| None)
    }

    /// [`continuation`](Self::continuation) of a request with `lists`; `mask` guides the token after each output, if it gives one.
    pub fn continuation_with(
        &self,
        prompt: &[TokenId],
        sampling: &SamplingRow,
        lists: &SamplingLists,
        stop_tokens: &[TokenId],
        limit: usize,
        mask: &mut dyn FnMut(&[TokenId]) -> Option<Vec<u32>>,
    ) -> Vec<TokenId> {
        let mut context = prompt.iter().fold(Context::start(self.seed), |context, token| context.then(*token));
        let mut output: Vec<TokenId> = Vec::new();
        let vocab_size = self.capacity.vocab_size;
        let allowed = lists.allowed.as_ref().map(|allowed| {
            let mut mask = vec![0; mask_words(vocab_size as usize)];
            fill_mask(&mut mask, allowed);
            mask
        });
        while prompt.len() + output.len() < limit {
            let Some(token) = self.next_token(context, sampling) else { break };
            let mask = mask(&output).or_else(|| allowed.clone());
            let count = output.len();
            let Some(token) =
                rules::first_allowed(token, vocab_size, sampling, Some(lists), mask.as_deref(), &output, count)
            else {
                break;
            };
            output.push(token);
            if stop_tokens.contains(&token) {
                break;
            }
            context = context.then(token);
        }
        output
    }

    /// The log-probability that a scored token gets.
    pub fn logprob(token: TokenId) -> f64 {
        -1.0 - f64::from(token % 7)
    }
}

/// Hash of a token list, extended one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Context(u64);

impl Context {
    fn start(seed: u64) -> Self {
        Self(seed ^ 0x9E37_79B9_7F4A_7C15)
    }

    /// SplitMix64's finaliser over the sum: cheap, and every bit depends on every token.
    fn then(self, token: TokenId) -> Self {
        let mut word =
            self.0.rotate_left(5).wrapping_add(u64::from(token).wrapping_mul(0xBF58_476D_1CE4_E5B9)) ^ self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self(word ^ (word >> 31))
    }
}

/// See the module.
#[derive(Debug)]
pub struct MockRunner {
    options: MockOptions,
    memory: Memory,
    now: u64,
    /// When the device finishes what it has.
    busy_until: u64,
    results: VecDeque<(u64, StepResult)>,
    last_epoch: Epoch,
    lost: bool,
}

impl MockRunner {
    /// An idle device with empty KV.
    pub fn new(options: MockOptions) -> Self {
        Self {
            memory: Memory::new(&options),
            options,
            now: 0,
            busy_until: 0,
            results: VecDeque::new(),
            last_epoch: Epoch(0),
            lost: false,
        }
    }

    /// Virtual time since the start.
    pub fn now_micros(&self) -> u64 {
        self.now
    }

    /// Lets virtual time pass.
    pub fn advance(&mut self, micros: u64) {
        self.now += micros;
    }

    fn check_alive(&self) -> Result<(), RunError> {
        if self.lost { Err(RunError::DeviceLost("injected".into())) } else { Ok(()) }
    }

    fn lose(&mut self) -> Result<(), RunError> {
        self.lost = true;
        self.check_alive()
    }
}

impl ModelRunner for MockRunner {
    fn capacity(&self) -> Capacity {
        self.options.capacity
    }

    fn costs(&self) -> Costs {
        Costs {
            prefill_micros_per_token: self.options.prefill_micros as f32,
            move_micros_per_block: self.options.move_micros as f32,
        }
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), RunError> {
        self.check_alive()?;
        match self.options.fault {
            Some(Fault::LostAtSubmit(epoch)) if epoch == plan.epoch => self.lose()?,
            Some(Fault::BugAtSubmit(epoch)) if epoch == plan.epoch => return Err(RunError::Bug("injected".into())),
            _ => {}
        }
        check_limits(plan, &self.options.capacity)?;
        if plan.epoch <= self.last_epoch {
            return Err(RunError::Bug(format!("plan {} comes after plan {}", plan.epoch, self.last_epoch)));
        }
        self.last_epoch = plan.epoch;
        let mut result = StepResult { epoch: plan.epoch, ..StepResult::default() };
        self.memory.run(plan, &self.options, &mut result)?;
        let micros = plan.prefill_tokens.len() as u64 * self.options.prefill_micros
            + (plan.saves.len() + plan.loads.len()) as u64 * self.options.move_micros
            + u64::from(plan.steps) * self.options.step_micros;
        result.micros = micros as u32;
        self.busy_until = self.busy_until.max(self.now) + micros;
        self.results.push_back((self.busy_until + self.options.latency_micros, result));
        Ok(())
    }

    fn poll(&mut self, wait: Wait, result: &mut StepResult) -> Result<bool, RunError> {
        self.check_alive()?;
        let Some((ready, oldest)) = self.results.front() else { return Ok(false) };
        let deadline = match wait {
            Wait::No => self.now,
            Wait::AtMost(duration) => self.now.saturating_add(micros(duration)),
        };
        if *ready > deadline {
            self.now = deadline;
            return Ok(false);
        }
        self.now = self.now.max(*ready);
        if matches!(self.options.fault, Some(Fault::LostAtPoll(epoch)) if epoch <= oldest.epoch) {
            self.lose()?;
        }
        if let Some((_, oldest)) = self.results.pop_front() {
            *result = oldest;
            self.memory.report(result.epoch);
        }
        Ok(true)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Everything about a plan that can be judged without state.
fn check_limits(plan: &StepPlan, capacity: &Capacity) -> Result<(), RunError> {
    let bug = |what: String| Err(RunError::Bug(format!("plan {}: {what}", plan.epoch)));
    if plan.is_empty() {
        return bug("nothing to compute".into());
    }
    if plan.token_count() > capacity.max_batched_tokens as usize {
        return bug(format!("{} rows, but {} fit", plan.token_count(), capacity.max_batched_tokens));
    }
    if plan.steps == 0 || plan.steps > capacity.max_steps || plan.steps > 1 && !plan.prefill.is_empty() {
        return bug(format!("{} steps with {} chunks, at most {}", plan.steps, plan.prefill.len(), capacity.max_steps));
    }
    let chunk_tokens: usize = plan.prefill.iter().map(|chunk| chunk.len as usize).sum();
    if chunk_tokens != plan.prefill_tokens.len() || plan.prefill.iter().any(|chunk| chunk.len == 0) {
        return bug(format!("chunks of {chunk_tokens} tokens, {} tokens given", plan.prefill_tokens.len()));
    }
    let slots = plan.prefill.iter().map(|chunk| chunk.slot).chain(plan.decode.iter().map(|row| row.slot));
    let mut taken = vec![false; capacity.slot_count as usize];
    for slot in slots {
        match taken.get_mut(slot.index()) {
            Some(taken) if !*taken => *taken = true,
            Some(_) => return bug(format!("slot {slot} has two rows")),
            None => return bug(format!("slot {slot} of {}", capacity.slot_count)),
        }
    }
    Ok(())
}
