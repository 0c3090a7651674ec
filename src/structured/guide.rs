//! A compiled grammar at one place of one output. No two guides share state that changes, so what one request does
//! cannot be seen by another, not even through a cache or a limit.

use super::vocabulary::Vocabulary;
use crate::base::TokenId;
use crate::error::{Error, Result};
use crate::sampling::guide::TokenGuide;
use llguidance::Matcher;
use std::sync::Arc;

/// Follows one output through its grammar.
///
/// Invariants: `position` tokens were accepted, the last of them an end token if `ended`. The matcher has all of them but
/// the end token, unless the grammar itself names it.
pub(super) struct Guide {
    vocabulary: Arc<Vocabulary>,
    matcher: Matcher,
    position: usize,
    ended: bool,
    /// Whether the mask of this place, if it was asked for, has end tokens only.
    only_end_may_follow: bool,
}

impl Guide {
    pub(super) fn new(vocabulary: Arc<Vocabulary>, matcher: Matcher) -> Self {
        Self { vocabulary, matcher, position: 0, ended: false, only_end_may_follow: false }
    }

    fn is_known(&self, token: TokenId) -> bool {
        let word = self.vocabulary.known.get(token as usize / 32).copied().unwrap_or(0);
        word >> (token % 32) & 1 == 1
    }

    /// An error unless the matcher stopped because the grammar is at its end.
    fn stopped_well(&self) -> Result<()> {
        if self.matcher.stop_reason().is_ok() && !self.matcher.is_error() {
            return Ok(());
        }
        let message = self.matcher.get_error().unwrap_or_else(|| self.matcher.stop_reason().to_string());
        Err(self.failure(&message))
    }

    /// An error of the library as one of ours, which names the place.
    fn failure(&self, message: &impl std::fmt::Display) -> Error {
        let (position, message) = (self.position, first_line(message));
        if message.starts_with("NoExtensionBias") {
            return nothing_may_follow(position);
        }
        Error::config(format!(
            "the grammar cannot be followed after {position} tokens of output: {message}; simplify it"
        ))
    }
}

impl TokenGuide for Guide {
    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<()> {
        mask.fill(0);
        if self.ended {
            return Err(Error::config(format!("the output has ended after {} tokens", self.position - 1)));
        }
        if self.matcher.is_stopped() {
            self.stopped_well()?;
        }
        let allowed = self.matcher.compute_mask_or_eos().map_err(|error| self.failure(&error))?;
        let mut count = 0;
        for ((mask, allowed), known) in mask.iter_mut().zip(allowed.as_slice()).zip(&self.vocabulary.known) {
            *mask = allowed & known;
            count += mask.count_ones();
        }
        let is_set = |id: &&TokenId| mask.get(**id as usize / 32).is_some_and(|word| word >> (**id % 32) & 1 == 1);
        let ends = self.vocabulary.end_tokens.iter().filter(is_set).count();
        self.only_end_may_follow = count as usize == ends && self.may_end()?;
        // Without end tokens, an output that is complete has an empty mask, and nobody should ask for it.
        if count == 0 { Err(nothing_may_follow(self.position)) } else { Ok(()) }
    }

    fn accept(&mut self, token: TokenId) -> Result<()> {
        let refused =
            |position: usize| Error::config(format!("token {token} may not come after {position} tokens of output"));
        if self.ended || !self.is_known(token) {
            return Err(refused(self.position));
        }
        if self.vocabulary.end_tokens.contains(&token) && self.may_end()? {
            self.ended = true;
        } else {
            let taken = self.matcher.try_consume_tokens(&[token]).map_err(|error| self.failure(&error))?;
            if taken == 0 {
                return Err(refused(self.position));
            }
        }
        self.position += 1;
        self.only_end_may_follow = false;
        Ok(())
    }

    fn may_end(&mut self) -> Result<bool> {
        if self.ended {
            return Ok(true);
        }
        if self.matcher.is_stopped() {
            return self.stopped_well().map(|()| true);
        }
        self.matcher.is_accepting().map_err(|error| self.failure(&error))
    }

    fn is_done(&self) -> bool {
        self.ended || self.only_end_may_follow || (self.matcher.is_stopped() && self.stopped_well().is_ok())
    }

    fn rollback(&mut self, tokens: usize) -> Result<()> {
        if tokens > self.position {
            return Err(Error::bug(format!("{tokens} tokens taken back after {}", self.position)));
        }
        if tokens == 0 {
            return Ok(());
        }
        let of_matcher = if self.ended { tokens - 1 } else { tokens };
        self.matcher.rollback(of_matcher).map_err(|error| self.failure(&error))?;
        self.ended = false;
        self.only_end_may_follow = false;
        self.position -= tokens;
        Ok(())
    }

    fn fork(&self) -> Box<dyn TokenGuide> {
        Box::new(Self { vocabulary: Arc::clone(&self.vocabulary), matcher: self.matcher.deep_clone(), ..*self })
    }
}

fn nothing_may_follow(position: usize) -> Error {
    Error::config(format!(
        "no token of the vocabulary may follow after {position} tokens of output; the grammar contradicts itself or needs \
         characters that the vocabulary lacks"
    ))
}

/// What matters of the library's messages, which go on with its state and with lists of what there is.
pub(super) fn first_line(message: &impl std::fmt::Display) -> String {
    const MOST_CHARACTERS: usize = 200;
    let message = message.to_string();
    let line = message.lines().next().unwrap_or_default().trim();
    match line.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}
