//! What the scheduler tells: every decision as a value, in the order in which it was taken. Streams, metrics and traces
//! all read this one list.

use crate::base::{BlockId, HostBlockId, RequestId, SeqId, TokenId};
use crate::runner::{TokenLogprob, TopRange};

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
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
    /// It stood in front for too many steps without getting any further.
    Stalled,
    /// The output went round in circles: see [`RepetitionDetection`](crate::sampling::RepetitionDetection).
    Repetition,
    /// The request's own rules left no token to choose.
    NothingAllowed,
}

impl FinishReason {
    /// Whether something went wrong.
    pub const fn is_fault(self) -> bool {
        matches!(self, Self::Error | Self::Stalled | Self::NothingAllowed)
    }

    /// The name used in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Repetition => "repetition",
            Self::Error | Self::Stalled | Self::NothingAllowed => "error",
        }
    }
}

/// One decision or its outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SchedEvent {
    /// A sequence was accepted and waits.
    Arrived {
        /// Who.
        seq: SeqId,
        /// The call it belongs to.
        request: RequestId,
        /// Known tokens.
        prompt_tokens: u32,
    },
    /// It got a slot. Comes again after a preemption.
    Admitted {
        /// Who.
        seq: SeqId,
        /// Leading tokens whose KV was there already: in the prefix cache, shared with a fork, or brought back.
        cached_tokens: usize,
        /// Of these, tokens whose KV came back from the host.
        host_tokens: usize,
        /// Blocks it holds now.
        blocks: u32,
    },
    /// Known tokens are computed.
    Chunk {
        /// Who.
        seq: SeqId,
        /// Position of the first.
        start: u32,
        /// How many.
        len: u32,
    },
    /// Tokens are generated.
    Decode {
        /// Who.
        seq: SeqId,
        /// Position of the first input.
        position: u32,
        /// Steps that the device runs by itself.
        steps: u16,
    },
    /// It lost its slot and blocks and waits; its tokens survive.
    Preempted {
        /// Who.
        seq: SeqId,
        /// Why.
        reason: PreemptReason,
        /// What became of its KV.
        how: Released,
        /// Tokens with KV that it gave up.
        tokens: u32,
        /// What the scheduler expected of both ways, in microseconds; 0 where it did not ask.
        estimates: Estimates,
    },
    /// A block lost its name to make room.
    Evicted {
        /// Which.
        block: BlockId,
        /// Where its content lives on, if the host keeps it.
        kept: Option<HostBlockId>,
    },
    /// A shared block was copied before its first write.
    Copied {
        /// For whom.
        seq: SeqId,
        /// The shared one.
        source: BlockId,
        /// Its own one.
        target: BlockId,
    },
    /// A generated token. A stop token is reported too, before the end.
    Token {
        /// Who.
        seq: SeqId,
        /// Which.
        token: TokenId,
        /// Where the request asked for it; its likeliest tokens stand in the result that was committed.
        logprob: Option<TokenLogprob>,
    },
    /// Log-probability of a prompt token; each position once, in order.
    Score {
        /// Who.
        seq: SeqId,
        /// Position of the scored token, from 1.
        position: u32,
        /// Natural logarithm of its probability.
        logprob: f64,
        /// 1 plus the number of likelier tokens; 0 where the request did not ask.
        rank: u32,
        /// The likeliest tokens at its place, in the result that was committed.
        top: TopRange,
    },
    /// The end. The id means nothing to the scheduler from here on.
    Finished {
        /// Who.
        seq: SeqId,
        /// Why.
        reason: FinishReason,
    },
}

/// Why a sequence was preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreemptReason {
    /// Another sequence, more urgent or itself, needed a block and none was free.
    NoBlock {
        /// Who.
        wanted_by: SeqId,
    },
    /// The prefix cache was reset.
    Reset,
    /// The device was lost.
    DeviceLost,
}

/// What became of the KV of a preempted sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Given up, to be computed again.
    Dropped,
    /// Moved to the host.
    Swapped {
        /// How many blocks.
        blocks: u32,
    },
}

/// What bringing a sequence back would cost, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimates {
    /// By computing again what no cache holds.
    pub recompute_micros: u64,
    /// By moving its blocks to the host and back.
    pub swap_micros: u64,
}
