//! One token list on its way through the engine, and what the scheduler tells about it.

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
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop token, or a stop text found by the host.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
    /// The caller lost interest.
    Cancelled,
    /// The model's logits were not finite, or the runner broke its contract.
    Error,
}

impl FinishReason {
    /// The name used in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Error => "error",
        }
    }
}

/// News of a sequence, in the order in which it happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SeqEvent {
    /// It got a slot. Comes again after a preemption.
    Admitted {
        /// Who.
        seq: SeqId,
        /// Leading tokens whose KV came from the prefix cache.
        cached_tokens: usize,
    },
    /// It lost its KV to others and waits to compute it again; its tokens survive.
    Preempted {
        /// Who.
        seq: SeqId,
    },
    /// A generated token. A stop token is reported too, before the end.
    Token {
        /// Who.
        seq: SeqId,
        /// Which.
        token: TokenId,
    },
    /// Log-probability of a prompt token; each position once, in order.
    Score {
        /// Who.
        seq: SeqId,
        /// Position of the scored token, from 1.
        position: u32,
        /// Natural logarithm of its probability.
        logprob: f64,
    },
    /// The end. The id means nothing to the scheduler from here on.
    Finished {
        /// Who.
        seq: SeqId,
        /// Why.
        reason: FinishReason,
    },
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
