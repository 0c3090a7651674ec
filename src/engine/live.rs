//! One accepted request on the engine thread: the text of its outputs as they grow, its clock, and the events it sends.

use super::handle::{QueuePlace, Submission};
use super::stream::{Alternative, Finished, Timings, TokenEvent, Usage};
use crate::base::{SeqId, TokenId};
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
    events: UnboundedSender<Result<TokenEvent>>,
    /// One, or as many as the request asked for.
    outputs: Vec<Output>,
    stop_tokens: Vec<TokenId>,
    usage: Usage,
    prompt_logprobs: Vec<f64>,
    arrived: Instant,
    queue: Option<Duration>,
    first_token: Option<Duration>,
    place: Option<QueuePlace>,
}

/// One output under way.
struct Output {
    seq: SeqId,
    seed: u64,
    text: Option<TextState>,
    /// What the next event will bring.
    new_tokens: Vec<TokenId>,
    new_text: String,
    delivered: Option<Instant>,
    tokens: usize,
    end: Option<FinishReason>,
}

struct TextState {
    detokenizer: Detokenizer,
    stops: StopMatcher,
}

impl Live {
    pub fn new(submission: Submission, stop_tokens: Vec<TokenId>) -> Self {
        let Submission { prompt, events, arrived, place, .. } = submission;
        Self {
            events,
            outputs: Vec::new(),
            stop_tokens,
            usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
            prompt_logprobs: Vec::new(),
            arrived,
            queue: None,
            first_token: None,
            place: Some(place),
        }
    }

    /// One more output, which `seq` generates.
    pub fn add_output(&mut self, seq: SeqId, seed: u64, detokenizer: Option<Detokenizer>, stops: &[String]) {
        self.outputs.push(Output {
            seq,
            seed,
            text: detokenizer.map(|detokenizer| TextState {
                detokenizer,
                stops: StopMatcher::new(stops, crate::sampling::stop::StopText::Cut),
            }),
            new_tokens: Vec::new(),
            new_text: String::new(),
            delivered: None,
            tokens: 0,
            end: None,
        });
    }

    /// Sequences that generate for it still.
    pub fn open(&self) -> impl Iterator<Item = SeqId> {
        self.outputs.iter().filter(|output| output.end.is_none()).map(|output| output.seq)
    }

    /// The sequence of each output, where it still generates.
    pub fn outputs(&self) -> Vec<Option<SeqId>> {
        self.outputs.iter().map(|output| output.end.is_none().then_some(output.seq)).collect()
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

    /// Takes a generated token of output `index`.
    pub fn token(&mut self, index: usize, token: TokenId, now: Instant) -> Verdict {
        self.first_token.get_or_insert(now - self.arrived);
        self.usage.output_tokens += 1;
        let output = &mut self.outputs[index];
        output.tokens += 1;
        output.new_tokens.push(token);
        let Some(TextState { detokenizer, stops }) = &mut output.text else { return Verdict::GoOn };
        // A token that ends the output is not part of its text.
        if self.stop_tokens.contains(&token) {
            return Verdict::GoOn;
        }
        let step = stops.push(detokenizer.push(token));
        output.new_text.push_str(step.text);
        if step.hit.is_some() { Verdict::StopText } else { Verdict::GoOn }
    }

    /// Sends what is new in output `index`, and says how long after the tokens before.
    pub fn flush(&mut self, index: usize, now: Instant) -> Option<Duration> {
        let output = &mut self.outputs[index];
        if output.new_tokens.is_empty() && output.new_text.is_empty() {
            return None;
        }
        let gap = output.delivered.replace(now).map(|before| now - before);
        let (token_ids, text) = (std::mem::take(&mut output.new_tokens), std::mem::take(&mut output.new_text));
        self.send(Ok(TokenEvent::Delta { index, token_ids, text }));
        gap
    }

    /// Output `index` has come to its end; what was held back of it is sent. True if it was the last.
    pub fn end(&mut self, index: usize, mut reason: FinishReason, now: Instant) -> bool {
        let output = &mut self.outputs[index];
        if let Some(TextState { detokenizer, stops }) = &mut output.text {
            // Half a character at the very end becomes U+FFFD, which may complete a stop text.
            let step = stops.push(detokenizer.finish());
            output.new_text.push_str(step.text);
            if step.hit.is_some() && reason == FinishReason::Length {
                reason = FinishReason::Stop;
            }
            output.new_text.push_str(&stops.finish());
        }
        output.end = Some(reason);
        self.flush(index, now);
        self.open().next().is_none()
    }

    /// Sends the end. `record` sees it first, so that figures read after the end of a stream include it.
    pub fn finish(self, now: Instant, record: impl FnOnce(&Finished)) {
        let total = now - self.arrived;
        let ends = self.outputs.iter().map(|output| Alternative {
            finish_reason: output.end.unwrap_or(FinishReason::Cancelled),
            seed: output.seed,
            output_tokens: output.tokens,
        });
        let mut ends: Vec<Alternative> = ends.collect();
        let fault = ends.iter().map(|end| end.finish_reason).find(|reason| reason.is_fault());
        let first = ends.remove(0);
        let finished = Finished {
            reason: fault.unwrap_or(first.finish_reason),
            usage: self.usage,
            timings: Timings { queue: self.queue.unwrap_or(total), first_token: self.first_token, total },
            seed: first.seed,
            prompt_logprobs: self.prompt_logprobs,
            alternatives: ends,
        };
        record(&finished);
        let event = match fault {
            Some(FinishReason::Stalled) => Err(Error::bug(
                "the request was ended because it stood in front of all others for too many steps without getting any \
                 further, which is a defect of octavo; a trace of the run (--trace) would show why",
            )),
            Some(_) => Err(Error::bug(
                "the model's output was not finite, so no token could be chosen; the weights may be damaged, or a \
                 kernel is wrong on this device (`octavo doctor` tells)",
            )),
            None => Ok(TokenEvent::Finished(finished)),
        };
        // A stream that is gone has already asked for the cancel.
        let _ = self.events.unbounded_send(event);
    }

    /// Ends the stream with an error.
    pub fn fail(mut self, error: Error) {
        let now = Instant::now();
        (0..self.outputs.len()).for_each(|index| {
            self.flush(index, now);
        });
        self.send(Err(error));
    }

    fn send(&self, event: Result<TokenEvent>) {
        // A stream that is gone has already asked for the cancel.
        let _ = self.events.unbounded_send(event);
    }
}
