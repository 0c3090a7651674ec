//! One output of a request as it grows: tokens in, text and the verdict whether it goes on out.

use super::logprob::Logprob;
use super::stream::TokenEvent;
use crate::base::{SeqId, TokenId};
use crate::sampling::SamplingParams;
use crate::sampling::repetition::RepetitionWatch;
use crate::sampling::stop::{StopMatcher, StopText};
use crate::sched::FinishReason;
use crate::text::Detokenizer;
use std::time::{Duration, Instant};

/// What a token led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    GoOn,
    /// Something that only the host sees ends the output: a stop text or a repetition.
    End(FinishReason),
}

pub(super) struct Output {
    pub seq: SeqId,
    pub seed: u64,
    pub tokens: usize,
    pub end: Option<FinishReason>,
    text: Option<TextState>,
    repetition: Option<RepetitionWatch>,
    /// Tokens before which neither a stop text nor a repetition ends it.
    min_tokens: usize,
    /// Whether the text of a stop token belongs to the output.
    keep_stop: bool,
    // What the next event will bring.
    new_tokens: Vec<TokenId>,
    new_text: String,
    new_logprobs: Vec<Logprob>,
    delivered: Option<Instant>,
}

struct TextState {
    detokenizer: Detokenizer,
    stops: StopMatcher,
}

impl Output {
    /// The beginning of what `seq` generates. Without a detokenizer it has no text.
    pub fn new(seq: SeqId, seed: u64, detokenizer: Option<Detokenizer>, params: &SamplingParams) -> Self {
        let keep_stop = params.include_stop_str_in_output;
        let stops = || StopMatcher::new(&params.stop, if keep_stop { StopText::Kept } else { StopText::Cut });
        Self {
            seq,
            seed,
            tokens: 0,
            end: None,
            text: detokenizer.map(|detokenizer| TextState { detokenizer, stops: stops() }),
            repetition: params.repetition_detection.map(RepetitionWatch::new),
            min_tokens: params.min_tokens as usize,
            keep_stop,
            new_tokens: Vec::new(),
            new_text: String::new(),
            new_logprobs: Vec::new(),
            delivered: None,
        }
    }

    /// Takes the next token. If `stops`, the scheduler ends the sequence with it.
    pub fn token(&mut self, token: TokenId, logprob: Option<Logprob>, stops: bool) -> Verdict {
        self.tokens += 1;
        self.new_tokens.push(token);
        self.new_logprobs.extend(logprob);
        // A token that ends the output is not part of its text.
        let stop_text = if stops && !self.keep_stop { false } else { self.add_text(token) };
        let repeats = self.repetition.as_mut().is_some_and(|watch| watch.push(token));
        match (stops, stop_text, repeats) {
            (true, ..) => Verdict::GoOn,
            (_, true, _) => Verdict::End(FinishReason::Stop),
            (_, _, true) if self.tokens >= self.min_tokens => Verdict::End(FinishReason::Repetition),
            _ => Verdict::GoOn,
        }
    }

    /// Whether a stop text is complete now.
    fn add_text(&mut self, token: TokenId) -> bool {
        let Some(TextState { detokenizer, stops }) = &mut self.text else { return false };
        let text = detokenizer.push(token);
        if self.tokens <= self.min_tokens {
            self.new_text.push_str(stops.pass(text));
            return false;
        }
        let step = stops.push(text);
        self.new_text.push_str(step.text);
        step.hit.is_some()
    }

    /// It has come to its end: what was held back becomes news.
    pub fn finish(&mut self, mut reason: FinishReason) {
        if let Some(TextState { detokenizer, stops }) = &mut self.text {
            // Half a character at the very end becomes U+FFFD, which may complete a stop text.
            let rest = detokenizer.finish();
            if self.tokens <= self.min_tokens {
                self.new_text.push_str(stops.pass(rest));
            } else {
                let step = stops.push(rest);
                self.new_text.push_str(step.text);
                if step.hit.is_some() && reason == FinishReason::Length {
                    reason = FinishReason::Stop;
                }
            }
            self.new_text.push_str(&stops.finish());
        }
        self.end = Some(reason);
    }

    /// What is new as an event of output `index`, and how long after the event before.
    pub fn take_news(&mut self, index: usize, now: Instant) -> Option<(TokenEvent, Option<Duration>)> {
        if self.new_tokens.is_empty() && self.new_text.is_empty() {
            return None;
        }
        let gap = self.delivered.replace(now).map(|before| now - before);
        let token_ids = std::mem::take(&mut self.new_tokens);
        let (text, logprobs) = (std::mem::take(&mut self.new_text), std::mem::take(&mut self.new_logprobs));
        Some((TokenEvent::Delta { index, token_ids, text, logprobs }, gap))
    }
}
