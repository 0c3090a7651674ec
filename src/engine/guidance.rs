//! One guide's way to the next mask, on a thread of its own.

use crate::base::TokenId;
use crate::error::{Error, Result};
use crate::sampling::SamplingParams;
use crate::sampling::guide::{TokenGuide, forced_token};
use crate::sampling::lists::fill_mask;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What else decides which tokens may come.
pub(super) struct Rules {
    /// The request's own list, as a mask.
    allowed: Option<Vec<u32>>,
    /// Whether a token without alternative may be taken without the model: nobody wants its log-probability, and no other rule of
    /// the request could forbid it.
    may_jump: bool,
}

/// A guide on its way to the next mask and back.
pub(super) struct Job {
    pub(super) guide: Box<dyn TokenGuide>,
    pub(super) mask: Vec<u32>,
    pub(super) rules: Arc<Rules>,
    /// Most tokens to take without the model.
    pub(super) room: usize,
}

/// What became of a [`Job`].
pub(super) struct Guidance {
    pub(super) guide: Box<dyn TokenGuide>,
    pub(super) mask: Vec<u32>,
    /// Tokens that had no alternative.
    pub(super) forced: Vec<TokenId>,
    pub(super) outlook: Result<Outlook>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// The mask says what may come.
    Open,
    /// The output is complete.
    Done,
}

impl Job {
    /// Makes the mask for what comes after `token`, or at the beginning.
    pub(super) fn run(self, token: Option<TokenId>) -> Guidance {
        let Self { mut guide, mut mask, rules, room } = self;
        let mut forced = Vec::new();
        let outlook =
            catch_unwind(AssertUnwindSafe(|| look_ahead(&mut *guide, &mut mask, &rules, room, token, &mut forced)));
        let outlook = outlook.unwrap_or_else(|_| Err(Error::bug("the grammar engine stopped at a defect")));
        Guidance { guide, mask, forced, outlook }
    }
}

fn look_ahead(
    guide: &mut dyn TokenGuide,
    mask: &mut [u32],
    rules: &Rules,
    room: usize,
    token: Option<TokenId>,
    forced: &mut Vec<TokenId>,
) -> Result<Outlook> {
    if let Some(token) = token {
        guide.accept(token)?;
    }
    loop {
        if guide.is_done() {
            return Ok(Outlook::Done);
        }
        guide.fill_mask(mask)?;
        // Only now it may know that nothing but the end can follow.
        if guide.is_done() {
            return Ok(Outlook::Done);
        }
        if let Some(allowed) = &rules.allowed {
            mask.iter_mut().zip(allowed).for_each(|(word, allowed)| *word &= allowed);
            if mask.iter().all(|word| *word == 0) {
                // The end is no token that the list must name: it is the grammar that says where an output may end.
                if guide.may_end()? {
                    return Ok(Outlook::Done);
                }
                return Err(Error::config("none of the allowed_token_ids is a token that may come next"));
            }
        }
        let only = forced_token(mask).filter(|_| rules.may_jump && forced.len() < room);
        let Some(only) = only else { return Ok(Outlook::Open) };
        guide.accept(only)?;
        forced.push(only);
    }
}

impl Rules {
    pub(super) fn new(params: &SamplingParams, words: usize) -> Self {
        let SamplingParams { logprobs, prompt_logprobs, logit_bias, bad_words, min_tokens, allowed_token_ids, .. } =
            params;
        let mask = |tokens: &Vec<TokenId>| {
            let mut mask = vec![0; words];
            fill_mask(&mut mask, tokens);
            mask
        };
        Self {
            allowed: allowed_token_ids.as_ref().map(mask),
            may_jump: logprobs.is_none()
                && prompt_logprobs.is_none()
                && logit_bias.is_empty()
                && bad_words.is_empty()
                && *min_tokens == 0,
        }
    }
}
