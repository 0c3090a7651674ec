//! One accepted request on the engine thread: its text as it grows, its clock, and the events it sends.

use super::handle::{QueuePlace, Submission};
use super::stream::{Finished, Timings, TokenEvent, Usage};
use crate::base::{RequestId, TokenId};
use crate::error::{Error, Result};
use crate::sampling::stop::StopMatcher;
use crate::sched::FinishReason;
use crate::text::Detokenizer;
use futures::channel::mpsc::UnboundedSender;
use std::time::{Duration, Instant};

/// What a token led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    GoOn,
    /// A stop text is complete: the host must end the sequence.
    StopText,
}

pub(super) struct Live {
    pub request: RequestId,
    events: UnboundedSender<Result<TokenEvent>>,
    text: Option<TextState>,
    stop_tokens: Vec<TokenId>,
    /// What the next event will bring.
    new_tokens: Vec<TokenId>,
    new_text: String,
    usage: Usage,
    seed: u64,
    prompt_logprobs: Vec<f64>,
    arrived: Instant,
    queue: Option<Duration>,
    first_token: Option<Duration>,
    place: Option<QueuePlace>,
}

struct TextState {
    detokenizer: Detokenizer,
    stops: StopMatcher,
}

impl Live {
    pub fn new(submission: Submission, stop_tokens: Vec<TokenId>) -> Self {
        let Submission { request, prompt, params, seed, events, tokenizer, arrived, place, .. } = submission;
        let text = tokenizer.map(|tokenizer| TextState {
            detokenizer: Detokenizer::new(tokenizer, true),
            stops: StopMatcher::new(&params.stop),
        });
        Self {
            request,
            events,
            text,
            stop_tokens,
            new_tokens: Vec::new(),
            new_text: String::new(),
            usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
            seed,
            prompt_logprobs: Vec::new(),
            arrived,
            queue: None,
            first_token: None,
            place: Some(place),
        }
    }

    /// It got a slot. Only the first time counts: a preempted request no longer queues.
    pub fn admitted(&mut self, cached_tokens: usize, now: Instant) {
        if self.place.take().is_some() {
            self.queue = Some(now - self.arrived);
            self.usage.cached_tokens = cached_tokens.min(self.usage.prompt_tokens);
        }
    }

    pub fn preempted(&mut self) {
        self.usage.preemptions += 1;
    }

    pub fn score(&mut self, logprob: f64) {
        self.prompt_logprobs.push(logprob);
    }

    /// Takes a generated token.
    pub fn token(&mut self, token: TokenId, now: Instant) -> Verdict {
        self.first_token.get_or_insert(now - self.arrived);
        self.usage.output_tokens += 1;
        self.new_tokens.push(token);
        let Some(TextState { detokenizer, stops }) = &mut self.text else { return Verdict::GoOn };
        // A token that ends the output is not part of its text.
        if self.stop_tokens.contains(&token) {
            return Verdict::GoOn;
        }
        let step = stops.push(detokenizer.push(token));
        self.new_text.push_str(step.text);
        if step.hit.is_some() { Verdict::StopText } else { Verdict::GoOn }
    }

    /// Sends what is new.
    pub fn flush(&mut self) {
        if self.new_tokens.is_empty() && self.new_text.is_empty() {
            return;
        }
        let (token_ids, text) = (std::mem::take(&mut self.new_tokens), std::mem::take(&mut self.new_text));
        self.send(Ok(TokenEvent::Delta { token_ids, text }));
    }

    /// Sends the end, after the text that was held back. `record` sees it first, so that figures read after the end of
    /// a stream include it.
    pub fn finish(mut self, mut reason: FinishReason, now: Instant, record: impl FnOnce(&Finished)) {
        if let Some(TextState { detokenizer, stops }) = &mut self.text {
            // Half a character at the very end becomes U+FFFD, which may complete a stop text.
            let step = stops.push(detokenizer.finish());
            self.new_text.push_str(step.text);
            if step.hit.is_some() && reason == FinishReason::Length {
                reason = FinishReason::Stop;
            }
            self.new_text.push_str(&stops.finish());
        }
        let total = now - self.arrived;
        let finished = Finished {
            reason,
            usage: self.usage,
            timings: Timings { queue: self.queue.unwrap_or(total), first_token: self.first_token, total },
            seed: self.seed,
            prompt_logprobs: std::mem::take(&mut self.prompt_logprobs),
        };
        record(&finished);
        self.flush();
        if reason == FinishReason::Error {
            self.send(Err(Error::bug(
                "the model's output was not finite, so no token could be chosen; the weights may be damaged, or a \
                 kernel is wrong on this device (`octavo doctor` tells)",
            )));
        } else {
            self.send(Ok(TokenEvent::Finished(finished)));
        }
    }

    /// Ends the stream with an error.
    pub fn fail(mut self, error: Error) {
        self.flush();
        self.send(Err(error));
    }

    fn send(&self, event: Result<TokenEvent>) {
        // A stream that is gone has already asked for the cancel.
        let _ = self.events.unbounded_send(event);
    }
}
