//! A slot of the reference runner: its owner, what the owner asked for, and its tokens so far.

use super::advance::SlotProgress;
use super::process::Request;
use super::score;
use crate::base::{SeqId, TokenId};
use crate::runner::{StepResult, TokenLogprob, TopRange, TopToken};
use crate::sampling::lists::{fill_mask, mask_words};
use crate::sampling::row::{ALL_LOGPROBS, NO_LOGPROBS};
use crate::sampling::{SamplingLists, SamplingRow};
use crate::sched::plan::SlotInit;

/// Stands where no token is known.
const UNKNOWN: TokenId = TokenId::MAX;

pub(super) struct Slot {
    pub seq: SeqId,
    pub sampling: SamplingRow,
    pub position_limit: u32,
    /// `None` until a last chunk has been computed.
    pub progress: Option<SlotProgress>,
    lists: SamplingLists,
    prompt_len: usize,
    /// By position.
    history: Vec<TokenId>,
    mask: Option<Vec<u32>>,
}

impl Slot {
    /// The slot of a new owner, of whom `history` is known.
    pub fn new(init: &SlotInit, history: &[TokenId], vocab_size: usize) -> Self {
        let lists = init.lists.as_deref().cloned().unwrap_or_default();
        let mask = lists.allowed.as_ref().map(|allowed| {
            let mut mask = vec![0; mask_words(vocab_size)];
            fill_mask(&mut mask, allowed);
            mask
        });
        Self {
            seq: init.seq,
            sampling: init.sampling,
            position_limit: init.position_limit,
            progress: None,
            lists,
            prompt_len: init.prompt_len as usize,
            history: history.to_vec(),
            mask,
        }
    }

    /// Takes note of the token at `position`.
    pub fn write(&mut self, position: usize, token: TokenId) {
        if self.history.len() <= position {
            self.history.resize(position + 1, UNKNOWN);
        }
        self.history[position] = token;
    }

    /// The next token is guided by `mask`.
    pub fn set_mask(&mut self, mask: &[u32]) {
        self.mask = Some(mask.to_vec());
    }

    /// Everything that decides about the token after `position`.
    ///
    /// # Errors
    /// The plans left something out.
    pub fn request(&self, position: usize) -> Result<Request<'_>, String> {
        let history = &self.history[..=position];
        if self.sampling.keeps_history() && history.contains(&UNKNOWN) {
            return Err(format!("{} keeps its history, but nobody told its token at {:?}", self.seq, {
                history.iter().position(|token| *token == UNKNOWN)
            }));
        }
        if self.sampling.is_guided() && self.mask.is_none() {
            return Err(format!("{} is guided, but has no mask for position {}", self.seq, position + 1));
        }
        Ok(Request {
            row: &self.sampling,
            lists: &self.lists,
            mask: self.mask.as_deref(),
            history,
            prompt_len: self.prompt_len,
        })
    }

    /// A guide's mask serves one token.
    pub fn sampled(&mut self, progress: SlotProgress) {
        self.progress = Some(progress);
        if self.sampling.is_guided() {
            self.mask = None;
        }
    }
}

/// What a request that `wants` log-probabilities ([`SamplingRow::logprobs`]) is told about `token`.
pub(super) fn report(logits: &[f32], token: TokenId, wants: u32, result: &mut StepResult) -> Option<TokenLogprob> {
    if wants == NO_LOGPROBS {
        return None;
    }
    let count = if wants == ALL_LOGPROBS { logits.len() } else { wants as usize - 1 };
    let tokens = score::likeliest(logits, count);
    let top = TopRange { first: result.top.len() as u32, count: tokens.len() as u32 };
    // The largest logit and the logarithm of the sum are the same for all.
    let first = tokens.first().map_or(0.0, |&token| score::logprob(logits, token));
    let best = tokens.first().map_or(0.0, |&token| f64::from(logits[token as usize]));
    result.top.extend(
        tokens
            .iter()
            .map(|&token| TopToken { token, logprob: (first + f64::from(logits[token as usize]) - best) as f32 }),
    );
    Some(TokenLogprob { logprob: score::logprob(logits, token), rank: score::rank(logits, token), top })
}
