//! A compiled grammar at one place of one output. No two guides share state that changes, so what one request does
//! cannot be seen by another, not even through a cache or a limit.

use super::kept_masks::KeptMasks;
use super::vocabulary::Vocabulary;
use crate::base::TokenId;
use crate::error::{Error, Result};
use crate::sampling::guide::TokenGuide;
use llguidance::TokenParser;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Follows one output through its grammar.
///
/// Invariants: `position` tokens were accepted, the last of them an end token if `ended`. The parser has all of them but
/// the end token, unless the grammar itself names it.
pub(super) struct Guide {
    vocabulary: Arc<Vocabulary>,
    parser: TokenParser,
    /// Of a grammar that is a single expression.
    masks: Option<Arc<KeptMasks>>,
    /// Why the parser can be asked nothing any more.
    broken: Option<String>,
    position: usize,
    ended: bool,
    /// Whether the mask of this place, if it was asked for, has end tokens only.
    only_end_may_follow: bool,
}

impl Guide {
    pub(super) fn new(vocabulary: Arc<Vocabulary>, mut parser: TokenParser) -> Self {
        parser.start_without_prompt();
        Self { vocabulary, parser, masks: None, broken: None, position: 0, ended: false, only_end_may_follow: false }
    }

    /// The same guide of a grammar that is a single expression.
    pub(super) fn with_kept_masks(mut self) -> Self {
        let masks = Arc::new(KeptMasks::new(Arc::clone(&self.parser.bias_computer)));
        self.parser.bias_computer = masks.clone();
        self.masks = Some(masks);
        self
    }

    fn is_known(&self, token: TokenId) -> bool {
        let word = self.vocabulary.known.get(token as usize / 32).copied().unwrap_or(0);
        word >> (token % 32) & 1 == 1
    }

    /// Asks the parser. What goes wrong there, a panic included, goes wrong for good.
    fn ask<T, E: Display>(
        &mut self,
        question: impl FnOnce(&mut TokenParser) -> std::result::Result<T, E>,
    ) -> Result<T> {
        if let Some(message) = &self.broken {
            return Err(self.failure(message));
        }
        let message = match catch_unwind(AssertUnwindSafe(|| question(&mut self.parser))) {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => first_line(&error),
            Err(_) => "the library stopped at a defect".to_owned(),
        };
        let failure = self.failure(&message);
        self.broken = Some(message);
        Err(failure)
    }

    fn is_stopped(&self) -> bool {
        self.broken.is_some() || self.parser.stopped()
    }

    /// An error unless the parser stopped because the grammar is at its end.
    fn stopped_well(&self) -> Result<()> {
        if self.parser.stop_reason().is_ok() && self.broken.is_none() {
            return Ok(());
        }
        let message = self.broken.clone().or_else(|| self.parser.error_message());
        Err(self.failure(&message.unwrap_or_else(|| self.parser.stop_reason().to_string())))
    }

    /// An error of the library as one of ours, which names the place.
    fn failure(&self, message: &impl Display) -> Error {
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
        let allowed = if self.is_stopped() {
            self.stopped_well()?;
            self.parser.token_env.tok_trie().eos_token_set()
        } else {
            self.ask(TokenParser::compute_mask)?
        };
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
            if !self.ask(|parser| parser.validate_token(token))? {
                return Err(refused(self.position));
            }
            // It says how many tokens to take back, which is for libraries that repair outputs.
            self.ask(|parser| parser.consume_token(token))?;
            self.ask(TokenParser::check_stop)?;
        }
        self.position += 1;
        self.only_end_may_follow = false;
        Ok(())
    }

    fn may_end(&mut self) -> Result<bool> {
        if self.ended {
            return Ok(true);
        }
        if self.is_stopped() {
            return self.stopped_well().map(|()| true);
        }
        self.ask(|parser| Ok::<_, Error>(parser.is_accepting()))
    }

    fn is_done(&self) -> bool {
        self.ended || self.only_end_may_follow || (self.is_stopped() && self.stopped_well().is_ok())
    }

    fn rollback(&mut self, tokens: usize) -> Result<()> {
        if tokens > self.position {
            return Err(Error::bug(format!("{tokens} tokens taken back after {}", self.position)));
        }
        if tokens == 0 {
            return Ok(());
        }
        let of_parser = if self.ended { tokens - 1 } else { tokens };
        self.ask(|parser| parser.rollback(of_parser))?;
        self.ended = false;
        self.only_end_may_follow = false;
        self.position -= tokens;
        Ok(())
    }

    fn fork(&self) -> Box<dyn TokenGuide> {
        let mut parser = self.parser.deep_clone();
        let masks = self.masks.as_ref().map(|masks| Arc::new(masks.fork()));
        if let Some(masks) = &masks {
            parser.bias_computer = masks.clone();
        }
        Box::new(Self {
            vocabulary: Arc::clone(&self.vocabulary),
            parser,
            masks,
            broken: self.broken.clone(),
            position: self.position,
            ended: self.ended,
            only_end_may_follow: self.only_end_may_follow,
        })
    }
}

fn nothing_may_follow(position: usize) -> Error {
    Error::config(format!(
        "no token of the vocabulary may follow after {position} tokens of output; the grammar contradicts itself or needs \
         characters that the vocabulary lacks"
    ))
}

/// What matters of the library's messages, which go on with its state and with lists of what there is.
pub(super) fn first_line(message: &impl Display) -> String {
    const MOST_CHARACTERS: usize = 200;
    let message = message.to_string();
    let line = message.lines().next().unwrap_or_default().trim();
    match line.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}
