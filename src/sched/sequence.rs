//! One token list on its way through the engine.

use super::FinishReason;
use super::queue::Urgency;
use crate::base::{BLOCK_TOKENS, BlockId, Epoch, HostBlockId, RequestId, SeqId, SlotId, TokenId};
use crate::cache::BlockHash;
use crate::sampling::{SamplingLists, SamplingRow};
use std::sync::Arc;

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
    /// Sampling parameters without a fixed size. With [guided](SamplingRow::is_guided) sampling, tokens are sampled only after
    /// [`Scheduler::set_ready`](super::Scheduler::set_ready), one each time; the first may be sampled at once.
    pub lists: Option<Arc<SamplingLists>>,
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
    /// Waits outside the queue, whatever its turn, until [`Scheduler::release`](super::Scheduler::release): something
    /// that it needs is still being made.
    pub held: bool,
}

impl NewSequence {
    /// A sequence with nothing special.
    pub fn new(request: RequestId, prompt: Vec<TokenId>, max_tokens: u32, sampling: SamplingRow) -> Self {
        Self {
            request,
            prompt,
            max_tokens,
            sampling,
            lists: None,
            stop_tokens: Vec::new(),
            cache_salt: None,
            score: false,
            arrival_micros: 0,
            priority: 0,
            deadline_micros: None,
            fork_of: None,
            held: false,
        }
    }
}

/// Where a sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeqState {
    /// In the waiting queue, without slot or device blocks.
    Waiting,
    /// Neither queued nor running, until something happens.
    Parked(Awaits),
    /// In the running list; known tokens are still to be computed.
    Prefill(SlotId),
    /// In the running list; the device holds its newest token.
    Decode(SlotId),
    /// Ended in the commit under way; removed before that returns.
    Done(FinishReason),
}

/// What a parked sequence waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaits {
    /// The prompt of the sequence that it shares it with.
    Leader(SeqId),
    /// A word from the caller.
    Caller,
}

/// Book-keeping of one sequence.
///
/// Counters: `tokens.len()` known, `in_flight` sampled on the device but unseen, `computed` with KV once everything
/// submitted has run. `computed <= tokens.len() + in_flight` and `computed <= table.len() * BLOCK_TOKENS`, always; a
/// sequence on the host keeps `computed` and has `host` instead of `table`.
#[derive(Debug)]
pub(super) struct Sequence {
    pub urgency: Urgency,
    pub request: RequestId,
    pub tokens: Vec<TokenId>,
    pub prompt_len: usize,
    /// Index of the first token that must not be generated.
    pub limit: usize,
    pub sampling: SamplingRow,
    pub lists: Option<Arc<SamplingLists>>,
    /// Whether the next token may be sampled: the mask of a guided sequence is there.
    pub ready: bool,
    pub stop_tokens: Vec<TokenId>,
    pub salt: Option<String>,
    pub score: bool,
    /// First position whose score has not been reported.
    pub scored: usize,
    /// With whom it shares its prompt, until it is first admitted.
    pub leader: Option<SeqId>,
    pub state: SeqState,
    pub computed: usize,
    /// Most tokens that ever had KV; a watchdog's idea of progress.
    pub furthest: usize,
    pub in_flight: usize,
    pub table: Vec<BlockId>,
    /// Leading entries of `table` that slid out of the window and are held no longer.
    pub slid: usize,
    /// Where its KV is while it is swapped out: of the blocks from `slid` on.
    pub host: Vec<HostBlockId>,
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
    pub fn new(urgency: Urgency, new: NewSequence, max_model_len: usize) -> Self {
        let prompt_len = new.prompt.len();
        let limit = prompt_len.saturating_add(new.max_tokens as usize).min(max_model_len);
        Self {
            urgency,
            request: new.request,
            tokens: new.prompt,
            prompt_len,
            limit,
            sampling: new.sampling,
            lists: new.lists,
            ready: true,
            stop_tokens: new.stop_tokens,
            salt: new.cache_salt,
            score: new.score,
            scored: 1,
            leader: new.fork_of,
            state: SeqState::Waiting,
            computed: 0,
            furthest: 0,
            in_flight: 0,
            table: Vec::new(),
            slid: 0,
            host: Vec::new(),
            hashes: Vec::new(),
            published: 0,
            incarnation: 0,
            last_use: Epoch(0),
        }
    }

    /// Who it is.
    pub fn id(&self) -> SeqId {
        self.urgency.seq
    }

    /// Memory for all it may become, so that decoding allocates nothing. Not sooner than at admission: a hundred thousand
    /// may wait.
    pub fn reserve(&mut self) {
        self.tokens.reserve_exact(self.limit - self.tokens.len());
        let blocks = self.limit.div_ceil(BLOCK_TOKENS);
        self.table.reserve_exact(blocks - self.table.len());
        self.hashes.reserve_exact(blocks - self.hashes.len());
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
            SeqState::Waiting | SeqState::Parked(_) | SeqState::Done(_) => None,
        }
    }

    /// Blocks that it holds on the device.
    pub fn held(&self) -> &[BlockId] {
        &self.table[self.slid.min(self.table.len())..]
    }

    /// Whether known tokens have no blocks to put their KV in: tokens that were appended after admission.
    pub fn lacks_blocks(&self) -> bool {
        matches!(self.state, SeqState::Prefill(_)) && self.table.len() * BLOCK_TOKENS < self.tokens.len()
    }

    /// Positions that ever get KV: the token at `limit - 1` is sampled but never run.
    pub fn kv_limit(&self) -> usize {
        kv_positions(self.prompt_len, self.limit)
    }

    /// Marks the end; the commit under way removes the sequence.
    pub fn end(&mut self, reason: FinishReason) {
        self.state = SeqState::Done(reason);
    }
}

/// See [`Sequence::kv_limit`].
pub(super) fn kv_positions(prompt_len: usize, limit: usize) -> usize {
    prompt_len.max(limit - 1)
}
