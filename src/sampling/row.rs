//! The part of a request that the sampler kernel reads from its slot.

use super::{SamplingParams, TopLogprobs};
use crate::base::TokenId;
use bytemuck::{Pod, Zeroable};

/// Stop tokens that the device checks by itself; the host checks all of them.
pub const MAX_DEVICE_STOPS: usize = 8;

/// [`SamplingRow::flags`]: the tokens so far are kept on the device, for penalties and bad words.
pub const KEEPS_HISTORY: u32 = 1;
/// [`SamplingRow::flags`]: the request has [lists](super::SamplingLists).
pub const HAS_LISTS: u32 = 2;
/// [`SamplingRow::flags`]: only the tokens of the slot's mask may be sampled.
pub const HAS_MASK: u32 = 4;
/// [`SamplingRow::flags`]: the host sends a new mask for each token, which it can only make once it knows the token before.
pub const IS_GUIDED: u32 = 8;

/// What to report besides the token: nothing.
pub const NO_LOGPROBS: u32 = 0;
/// What to report besides the token: the logits of all tokens.
pub const ALL_LOGPROBS: u32 = u32::MAX;
/// Alternatives that the sampler selects on the device; who wants more gets all of them and selects on the host.
pub const MAX_DEVICE_LOGPROBS: u32 = 64;

/// The part of a request that the sampler kernel reads from its slot. Mirrored in `shaders/lib/seq_state.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct SamplingRow {
    /// 0 for greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
    /// Low half of the seed.
    pub seed_low: u32,
    /// High half of the seed.
    pub seed_high: u32,
    /// Valid entries of `stops`.
    pub stop_count: u32,
    /// See [`KEEPS_HISTORY`], [`HAS_LISTS`], [`HAS_MASK`], [`IS_GUIDED`].
    pub flags: u32,
    /// Tokens after which the device stops the row.
    pub stops: [TokenId; MAX_DEVICE_STOPS],
    /// 1 is off.
    pub repetition_penalty: f32,
    /// 0 is off.
    pub presence_penalty: f32,
    /// 0 is off.
    pub frequency_penalty: f32,
    /// Outputs before which the early stops of the [lists](super::SamplingLists) cannot be sampled.
    pub min_tokens: u32,
    /// Only ids below it are sampled: the padding of a vocabulary is not.
    pub token_limit: u32,
    /// Alternatives to report with each sampled token, plus one; [`NO_LOGPROBS`] or [`ALL_LOGPROBS`].
    pub logprobs: u32,
    /// The same for each token of the prompt that is scored.
    pub prompt_logprobs: u32,
    /// Keeps the size a multiple of 16 bytes.
    pub reserved: u32,
}

impl SamplingRow {
    /// The row for `params`; `seed` has been chosen, `stops` are all token-level stops of the request. Flags that depend on the
    /// [lists](super::SamplingLists) and the vocabulary's limit are set by [`with_lists`](Self::with_lists) and by the caller.
    pub fn new(params: &SamplingParams, seed: u64, stops: &[TokenId]) -> Self {
        let greedy = params.is_greedy();
        let penalised =
            params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
        let guided = if params.constraint.is_some() { HAS_MASK | IS_GUIDED } else { 0 };
        let mut row = Self {
            temperature: if greedy { 0.0 } else { params.temperature.max(LOWEST_TEMPERATURE) },
            top_k: if greedy { 0 } else { params.top_k },
            top_p: if greedy { 1.0 } else { params.top_p },
            min_p: if greedy { 0.0 } else { params.min_p },
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            stop_count: stops.len().min(MAX_DEVICE_STOPS) as u32,
            flags: if penalised { KEEPS_HISTORY } else { 0 } | guided,
            stops: [0; MAX_DEVICE_STOPS],
            repetition_penalty: params.repetition_penalty,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            min_tokens: params.min_tokens,
            token_limit: u32::MAX,
            logprobs: wanted(params.logprobs),
            prompt_logprobs: wanted(params.prompt_logprobs),
            reserved: 0,
        };
        for (to, from) in row.stops.iter_mut().zip(stops) {
            *to = *from;
        }
        row
    }

    /// The row of a request with `lists`.
    #[must_use]
    pub fn with_lists(mut self, lists: &super::SamplingLists) -> Self {
        let has_lists = !(lists.bias.is_empty() && lists.bad_words.is_empty() && lists.early_stops.is_empty());
        self.flags |= if has_lists { HAS_LISTS } else { 0 };
        self.flags |= if lists.bad_words.iter().any(|word| word.len() > 1) { KEEPS_HISTORY } else { 0 };
        self.flags |= if lists.allowed.is_some() { HAS_MASK } else { 0 };
        self
    }

    /// The same row with draws of its own.
    #[must_use]
    pub const fn with_seed(mut self, seed: u64) -> Self {
        self.seed_low = seed as u32;
        self.seed_high = (seed >> 32) as u32;
        self
    }

    /// Whether the host sends a mask for each token.
    pub const fn is_guided(&self) -> bool {
        self.flags & IS_GUIDED != 0
    }

    /// Whether the tokens so far are kept on the device.
    pub const fn keeps_history(&self) -> bool {
        self.flags & KEEPS_HISTORY != 0
    }

    /// The seed of the draws.
    pub const fn seed(&self) -> u64 {
        (self.seed_high as u64) << 32 | self.seed_low as u64
    }
}

/// A lower temperature above zero counts as this one, as in vLLM: the quotient would lose all but the likeliest token anyway,
/// and might overflow.
const LOWEST_TEMPERATURE: f32 = 0.01;

fn wanted(logprobs: Option<TopLogprobs>) -> u32 {
    match logprobs {
        None => NO_LOGPROBS,
        Some(TopLogprobs::Most(count)) => count.saturating_add(1),
        Some(TopLogprobs::All) => ALL_LOGPROBS,
    }
}

/// Entries `(token, logit)` that the device reports for a row that wants `logprobs` (as in [`SamplingRow::logprobs`]) of a
/// vocabulary of `vocab_size`: those it selects, or all.
pub const fn logprob_entries(logprobs: u32, vocab_size: u32) -> u32 {
    match logprobs {
        NO_LOGPROBS => 0,
        wanted if wanted - 1 <= MAX_DEVICE_LOGPROBS && wanted - 1 <= vocab_size => wanted - 1,
        _ => vocab_size,
    }
}
