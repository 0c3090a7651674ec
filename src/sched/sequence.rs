//! One token list on its way through the engine, and what the scheduler tells about it.

use super::FinishReason;
use crate::base::{BLOCK_TOKENS, BlockId, Epoch, RequestId, SeqId, SlotId, TokenId};
use crate::cache::BlockHash;
use crate::sampling::SamplingRow;

/// A request to run one sequence.
#[derive(Clone, Debug)]
pub struct NewSequence {
    /// The call it belongs to; the scheduler only carries it.
    pub request: RequestId,
    /// Known tokens.
    pub prompt: Vec<TokenId>,
    /// Most tokens to generate. 0 is for `score` alone.
    pub max_tokens: u32,
    /// What the sampler reads on the device. Its `stops` must be among `stop_tokens`.
    pub sampling: SamplingRow,
    /// Every token that ends the output.
    pub stop_tokens: Vec<TokenId>,
    /// Sequences share cached prefixes only with those of equal salt.
    pub cache_salt: Option<String>,
    /// Report the log-probability of each prompt token but the first.
    pub score: bool,
    /// When it came, in microseconds of the caller's clock. Equal times keep the order of the calls.
    pub arrival_micros: u64,
    /// For [`Policy::Priority`](super::Policy): smaller runs first.
    pub priority: i32,
    /// For [`Policy::Edf`](super::Policy): when it should be done, on the clock of `arrival_micros`.
    pub deadline_micros: Option<u64>,
    /// Shares the prompt with a sequence that was added before: waits for that one's prompt and takes over its blocks.
    pub fork_of: Option<SeqId>,
}

impl NewSequence {
    /// A sequence with nothing special.
    pub fn new(request: RequestId, prompt: Vec<TokenId>, max_tokens: u32, sampling: SamplingRow) -> Self {
        Self {
            request,
            prompt,
            max_tokens,
            sampling,
            stop_tokens: Vec::new(),
            cache_salt: None,
            score: false,
            arrival_micros: 0,
            priority: 0,
            deadline_micros: None,
            fork_of: None,
        }
    }
}

/// Where a sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeqState {
    /// In the waiting queue, without slot or blocks.
    Waiting,
    /// In the running list; known tokens are still to be computed.
    Prefill(SlotId),
    /// In the running list; the device holds its newest token.
    Decode(SlotId),
    /// Ended in the commit under way; removed before that returns.
    Done(FinishReason),
}

/// Book-keeping of one sequence.
///
/// Counters: `tokens.len()` known, `in_flight` sampled on the device but unseen, `computed` with KV once everything
/// submitted has run. `computed <= tokens.len() + in_flight` and `computed <= table.len() * BLOCK_TOKENS`, always.
#[derive(Debug)]
pub(super) struct Sequence {
    pub id: SeqId,
    pub request: RequestId,
    pub tokens: Vec<TokenId>,
    pub prompt_len: usize,
    /// Index of the first token that must not be generated.
    pub limit: usize,
    pub sampling: SamplingRow,
    pub stop_tokens: Vec<TokenId>,
    pub salt: Option<String>,
    pub score: bool,
    /// First position whose score has not been reported.
    pub scored: usize,
    pub state: SeqState,
    pub computed: usize,
    pub in_flight: usize,
    pub table: Vec<BlockId>,
    /// Chain hashes of the first full blocks of `tokens`; filled on demand, never shortened since tokens only grow.
    pub hashes: Vec<BlockHash>,
    /// Leading blocks that were taken from the prefix cache or offered to it.
    pub published: usize,
    /// Times preempted; submissions made before the last one no longer describe `table`.
    pub incarnation: u32,
    /// Last submission that touches `table`.
    pub last_use: Epoch,
}

impl Sequence {
    pub fn new(id: SeqId, new: NewSequence, max_model_len: usize) -> Self {
        let prompt_len = new.prompt.len();
        let limit = prompt_len.saturating_add(new.max_tokens as usize).min(max_model_len);
        let mut tokens = new.prompt;
        // Reserved now, so that decoding allocates nothing.
        tokens.reserve_exact(limit - prompt_len);
        let blocks = limit.div_ceil(BLOCK_TOKENS);
        Self {
            id,
            request: new.request,
            tokens,
            prompt_len,
            limit,
            sampling: new.sampling,
            stop_tokens: new.stop_tokens,
            salt: new.cache_salt,
            score: new.score,
            scored: 1,
            state: SeqState::Waiting,
            computed: 0,
            in_flight: 0,
            table: Vec::with_capacity(blocks),
            hashes: Vec::with_capacity(blocks),
            published: 0,
            incarnation: 0,
            last_use: Epoch(0),
        }
    }

    /// Tokens that exist, seen or not.
    pub fn total(&self) -> usize {
        self.tokens.len() + self.in_flight
    }

    /// Tokens that may still be sampled.
    pub fn remaining(&self) -> usize {
        self.limit - self.total()
    }

    /// The slot, while it has one.
    pub fn slot(&self) -> Option<SlotId> {
        match self.state {
            SeqState::Prefill(slot) | SeqState::Decode(slot) => Some(slot),
            SeqState::Waiting | SeqState::Done(_) => None,
        }
    }

    /// Positions that ever get KV: the token at `limit - 1` is sampled but never run.
    pub fn kv_limit(&self) -> usize {
        kv_positions(self.prompt_len, self.limit)
    }
}

/// See [`Sequence::kv_limit`].
pub(super) fn kv_positions(prompt_len: usize, limit: usize) -> usize {
    prompt_len.max(limit - 1)
}
