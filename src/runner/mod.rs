//! Runs step plans. The engine sees only [`ModelRunner`]; behind it stand the GPU, the f64 reference and a mock.

pub mod mock;
pub(crate) mod move_rules;
pub mod wgpu;

use crate::base::{Epoch, SeqId, SlotId, TokenId};
use crate::sched::plan::StepPlan;
use std::time::Duration;

/// What a runner can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Capacity {
    /// KV blocks.
    pub block_count: u32,
    /// Sequences that run at once.
    pub slot_count: u32,
    /// Token rows in one step.
    pub max_batched_tokens: u32,
    /// Longest sequence, prompt and output together.
    pub max_model_len: u32,
    /// Decode steps in one submission.
    pub max_steps: u16,
    /// Vocabulary entries; valid token ids are below it.
    pub vocab_size: u32,
    /// KV blocks that the host can keep for swapping and as a second level of the prefix cache; 0 without such memory.
    pub host_blocks: u32,
    /// The most past tokens that any layer sees, if every layer has such a window: KV before it is never read again.
    pub window: Option<u32>,
    /// Entries of log-probabilities that one submission can report besides those of the tokens themselves.
    #[serde(default)]
    pub logprob_entries: u32,
}

/// What work costs on this device, as measured so far; 0 where nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// Microseconds to compute one prompt token.
    pub prefill_micros_per_token: f32,
    /// Microseconds to move one KV block between device and host, one way.
    pub move_micros_per_block: f32,
}

/// Executes plans in order.
///
/// Results arrive strictly in epoch order. After [`RunError::DeviceLost`] the runner accepts no call but being dropped.
pub trait ModelRunner: Send {
    /// Fixed limits.
    fn capacity(&self) -> Capacity;

    /// What work costs; the scheduler weighs swapping against computing again.
    fn costs(&self) -> Costs {
        Costs::default()
    }

    /// Most prompt tokens of a step whose shortest pieces still keep to the time that a submission shall take, as far as
    /// that is known.
    fn prompt_limit(&self) -> u32 {
        u32::MAX
    }

    /// While nothing is in flight: does a small piece of what later plans would have to wait for, at most a few tens of milliseconds
    /// if the driver is quick. No token depends on it.
    ///
    /// # Errors
    /// The device is gone.
    fn prepare(&mut self) -> Result<Prepared, RunError> {
        Ok(Prepared::default())
    }

    /// Hands a plan to the device and returns at once.
    ///
    /// # Errors
    /// The device is gone, or the plan breaks a limit (a bug of the scheduler).
    fn submit(&mut self, plan: &StepPlan) -> Result<(), RunError>;

    /// Fills `result` with the oldest submission that has finished and not been reported yet; `false` if there is
    /// none, or none finished within `wait`. `result` is overwritten and its memory reused.
    ///
    /// # Errors
    /// The device is gone.
    fn poll(&mut self, wait: Wait, result: &mut StepResult) -> Result<bool, RunError>;
}

/// Steps that [`ModelRunner::prepare`] has prepared, and those that it means to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// So far.
    pub done: u32,
    /// In the end.
    pub total: u32,
}

impl Prepared {
    /// Whether there is nothing left to do.
    pub fn is_complete(self) -> bool {
        self.done >= self.total
    }
}

/// How long [`ModelRunner::poll`] may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until the oldest submission retires, at most so long.
    AtMost(Duration),
}

/// What one submission produced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepResult {
    /// Which submission.
    pub epoch: Epoch,
    /// Sampled tokens, ordered by step and then by row. A row that the device had already stopped is absent.
    pub tokens: Vec<SampledToken>,
    /// Scores of `score` chunks, ordered by sequence and position.
    pub scores: Vec<TokenScore>,
    /// The likeliest tokens of rows that asked for them: [`TopRange`] says whose.
    pub top: Vec<TopToken>,
    /// Time the device took.
    pub micros: u32,
}

impl StepResult {
    /// Empties the result and keeps its memory.
    pub fn clear(&mut self) {
        *self = Self {
            tokens: std::mem::take(&mut self.tokens),
            scores: std::mem::take(&mut self.scores),
            top: std::mem::take(&mut self.top),
            ..Self::default()
        };
        self.tokens.clear();
        self.scores.clear();
        self.top.clear();
    }
}

/// One sampled token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledToken {
    /// Owner of the slot when the plan was made.
    pub seq: SeqId,
    /// Its slot.
    pub slot: SlotId,
    /// The token, or why there is none.
    pub token: Result<TokenId, SampleFault>,
    /// Where the request asked for it.
    pub logprob: Option<TokenLogprob>,
}

/// Why a row has no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleFault {
    /// A logit was not finite.
    NotFinite,
    /// The request's own rules leave no token.
    NothingAllowed,
}

/// How likely a token was, by the model's own logits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenLogprob {
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// 1 plus the number of likelier tokens.
    pub rank: u32,
    /// The likeliest tokens.
    pub top: TopRange,
}

/// A run of [`StepResult::top`], likeliest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopRange {
    /// Index of the first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl TopRange {
    /// Its tokens among those of `result`.
    pub fn of(self, result: &StepResult) -> &[TopToken] {
        result.top.get(self.first as usize..(self.first + self.count) as usize).unwrap_or_default()
    }
}

/// One of the likeliest tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopToken {
    /// Which.
    pub token: TokenId,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Log-probability of a known token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// Owner.
    pub seq: SeqId,
    /// Position of the scored token.
    pub position: u32,
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// 1 plus the number of likelier tokens; 0 where the request did not ask.
    pub rank: u32,
    /// The likeliest tokens at its place, where the request asked for them.
    pub top: TopRange,
}

/// Why a runner failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The device is gone; rebuild the runner and run the live requests again.
    #[error("the GPU device was lost: {0}")]
    DeviceLost(String),
    /// The device ran out of memory.
    #[error("the GPU ran out of memory: {0}")]
    OutOfMemory(String),
    /// Broken invariant.
    #[error("{0}")]
    Bug(String),
}
