//! One accepted request on the engine thread: its outputs as they grow, its clock, and the events it sends.

use super::handle::{QueuePlace, Submission};
use super::logprob::Logprob;
use super::output::{Output, Verdict};
use super::stream::{Alternative, Finished, Timings, TokenEvent, Usage};
use crate::base::{SeqId, TokenId};
use crate::error::{Error, Result};
use crate::runner::{StepResult, TokenLogprob};
use crate::sampling::SamplingParams;
use crate::sched::FinishReason;
use crate::text::{Detokenizer, Tokenizer};
use futures::channel::mpsc::UnboundedSender;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) struct Live {
    events: UnboundedSender<Result<TokenEvent>>,
    prompt: Arc<[TokenId]>,
    params: SamplingParams,
    stop_tokens: Vec<TokenId>,
    tokenizer: Option<Tokenizer>,
    /// One, or as many as the request asked for.
    outputs: Vec<Output>,
    usage: Usage,
    prompt_logprobs: Vec<Logprob>,
    arrived: Instant,
    queue: Option<Duration>,
    first_token: Option<Duration>,
    place: Option<QueuePlace>,
}

impl Live {
    pub fn new(submission: Submission) -> Self {
        let Submission { prompt, params, prepared, events, tokenizer, arrived, place, .. } = submission;
        Self {
            events,
            usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
            prompt,
            tokenizer: tokenizer.filter(|_| params.detokenize),
            params,
            stop_tokens: prepared.stop_tokens,
            outputs: Vec::new(),
            prompt_logprobs: Vec::new(),
            arrived,
            queue: None,
            first_token: None,
            place: Some(place),
        }
    }

    /// One more output, which `seq` generates.
    pub fn add_output(&mut self, seq: SeqId, seed: u64) {
        let tokenizer = self.tokenizer.clone();
        let text =
            tokenizer.map(|tokenizer| Detokenizer::after(tokenizer, &self.prompt, self.params.skip_special_tokens));
        self.outputs.push(Output::new(seq, seed, text, &self.params));
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

    /// Takes the score of the prompt's token at `position`.
    pub fn score(&mut self, position: u32, found: TokenLogprob, result: &StepResult) {
        if let Some(token) = self.prompt.get(position as usize) {
            self.prompt_logprobs.push(Logprob::new(*token, found, result, self.params.prompt_logprobs));
        }
    }

    /// Takes a generated token of output `index`, with what `result` holds of it where the request asked.
    pub fn token(
        &mut self,
        index: usize,
        token: TokenId,
        found: Option<TokenLogprob>,
        result: &StepResult,
        now: Instant,
    ) -> Verdict {
        self.first_token.get_or_insert(now - self.arrived);
        self.usage.output_tokens += 1;
        let logprob = found.map(|found| Logprob::new(token, found, result, self.params.logprobs));
        self.outputs[index].token(token, logprob, self.stop_tokens.contains(&token))
    }

    /// Sends what is new in output `index`, and says how long after the tokens before.
    pub fn flush(&mut self, index: usize, now: Instant) -> Option<Duration> {
        let (event, gap) = self.outputs[index].take_news(index, now)?;
        self.send(Ok(event));
        gap
    }

    /// Output `index` has come to its end; what was held back of it is sent. True if it was the last.
    pub fn end(&mut self, index: usize, reason: FinishReason, now: Instant) -> bool {
        self.outputs[index].finish(reason);
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
        let fault = (0..).zip(&ends).find(|(_, end)| end.finish_reason.is_fault()).map(|(index, end)| (index, *end));
        let error = fault.map(|(index, end)| self.fault(index, end));
        let first = ends.remove(0);
        let finished = Finished {
            reason: fault.map_or(first.finish_reason, |(_, end)| end.finish_reason),
            usage: self.usage,
            timings: Timings { queue: self.queue.unwrap_or(total), first_token: self.first_token, total },
            seed: first.seed,
            prompt_logprobs: self.prompt_logprobs,
            alternatives: ends,
        };
        record(&finished);
        let event = error.map_or(Ok(TokenEvent::Finished(finished)), Err);
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

    /// What to tell of an output that could not go on.
    fn fault(&self, index: usize, end: Alternative) -> Error {
        match end.finish_reason {
            FinishReason::Stalled => Error::bug(
                "the request was ended because it stood in front of all others for too many steps without getting any \
                 further, which is a defect of octavo; a trace of the run (--trace) would show why",
            ),
            FinishReason::NothingAllowed => {
                let output = if self.params.n > 1 { format!("output {} has ", index + 1) } else { "there is ".into() };
                Error::config(format!(
                    "{output}no token that may come as its token number {}: {} forbid all of them; loosen them",
                    end.output_tokens + 1,
                    self.params.restrictions().join(", ")
                ))
            }
            _ => Error::bug(
                "the model's output was not finite, so no token could be chosen; the weights may be damaged, or a \
                 kernel is wrong on this device (`octavo doctor` tells)",
            ),
        }
    }

    fn send(&self, event: Result<TokenEvent>) {
        // A stream that is gone has already asked for the cancel.
        let _ = self.events.unbounded_send(event);
    }
}
