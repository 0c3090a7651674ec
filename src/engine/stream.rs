//! The outside end of a request: a stream of token events, and the output that they add up to.

use super::handle::Canceller;
use super::logprob::Logprob;
use crate::base::TokenId;
use crate::error::{Error, Result};
use crate::sched::FinishReason;
use futures::channel::mpsc::UnboundedReceiver;
use futures::stream::{FusedStream, Stream, StreamExt};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// News of a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TokenEvent {
    /// The output grew.
    Delta {
        /// Which of the outputs: 0, or up to `n - 1` where the request asked for several.
        index: usize,
        /// New tokens; may be empty where only held-back text became clear.
        token_ids: Vec<TokenId>,
        /// New text; may be empty. Never part of a character, never part of a stop text that is cut off.
        text: String,
        /// How likely each of the new tokens was; empty unless the request [asked](crate::SamplingParams::logprobs).
        logprobs: Vec<Logprob>,
    },
    /// The end; nothing follows.
    Finished(Finished),
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Why; of the first output.
    pub reason: FinishReason,
    /// Tokens that went in and out, of all outputs together.
    pub usage: Usage,
    /// How long it took.
    pub timings: Timings,
    /// The seed of the draws, chosen by the engine where the request left it open.
    pub seed: u64,
    /// How likely each prompt token but the first was; empty unless the request asked for
    /// [scores](super::Request::score) or for [`prompt_logprobs`](crate::SamplingParams::prompt_logprobs).
    pub prompt_logprobs: Vec<Logprob>,
    /// The ends of the other outputs, where the request asked for several.
    pub alternatives: Vec<Alternative>,
}

/// How one of several outputs ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// Why.
    pub finish_reason: FinishReason,
    /// The seed of its draws.
    pub seed: u64,
    /// Its generated tokens, the end token included.
    pub output_tokens: usize,
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens whose KV came from the prefix cache at admission.
    pub cached_tokens: usize,
    /// Generated tokens, the end token included.
    pub output_tokens: usize,
    /// Times that the request lost its KV memory to others and computed it again.
    pub preemptions: u32,
}

/// Times of a request, all counted from its submission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Until it got a slot; the whole time if it never did.
    pub queue: Duration,
    /// Until the first token; `None` without one.
    pub first_token: Option<Duration>,
    /// Until the end.
    pub total: Duration,
}

impl Timings {
    /// From the slot to the first token.
    pub fn prefill(&self) -> Option<Duration> {
        self.first_token.map(|first| first.saturating_sub(self.queue))
    }

    /// From the first token to the end.
    pub fn decode(&self) -> Option<Duration> {
        self.first_token.map(|first| self.total.saturating_sub(first))
    }

    /// The mean time for each of `output_tokens` after the first; `None` below two.
    pub fn per_output_token(&self, output_tokens: usize) -> Option<Duration> {
        let gaps = u32::try_from(output_tokens.checked_sub(1)?).ok().filter(|gaps| *gaps > 0)?;
        self.decode().map(|decode| decode / gaps)
    }
}

/// The events of one request. Dropping it cancels the request, whatever its state.
///
/// After [`TokenEvent::Finished`] or an error the stream is over. It needs no particular async runtime.
#[derive(Debug)]
pub struct TokenStream {
    pub(super) events: UnboundedReceiver<Result<TokenEvent>>,
    pub(super) canceller: Canceller,
    pub(super) prompt: Arc<[TokenId]>,
    pub(super) over: bool,
}

impl TokenStream {
    /// The prompt as the model sees it.
    pub fn prompt_token_ids(&self) -> &[TokenId] {
        &self.prompt
    }

    /// Ends the request; its stream still brings a [`TokenEvent::Finished`].
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The request was refused, or the engine failed.
    pub async fn output(mut self) -> Result<RequestOutput> {
        let mut builder = OutputBuilder::new(&self);
        while let Some(event) = self.next().await {
            if let Some(output) = builder.take(event?) {
                return Ok(output);
            }
        }
        Err(Error::bug("a stream ended without an end event"))
    }

    /// Waits for the end and blocks the thread meanwhile.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    pub fn wait(self) -> Result<RequestOutput> {
        pollster::block_on(self.output())
    }
}

impl Stream for TokenStream {
    type Item = Result<TokenEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let event = match self.events.poll_next_unpin(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(event)) => event,
            // The engine thread is gone and took the sender with it.
            Poll::Ready(None) => Err(self.canceller.stop_error()),
        };
        self.over = !matches!(event, Ok(TokenEvent::Delta { .. }));
        Poll::Ready(Some(event))
    }
}

impl FusedStream for TokenStream {
    fn is_terminated(&self) -> bool {
        self.over
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if !self.over {
            self.canceller.cancel();
        }
    }
}

/// A finished request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestOutput {
    /// The prompt as the model saw it.
    pub prompt_token_ids: Vec<TokenId>,
    /// Generated tokens, the end token included.
    pub token_ids: Vec<TokenId>,
    /// Generated text, without end tokens and stop texts unless the request [keeps](crate::SamplingParams::include_stop_str_in_output)
    /// them.
    pub text: String,
    /// How likely each generated token was; empty unless the request [asked](crate::SamplingParams::logprobs).
    pub logprobs: Vec<Logprob>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Token counts.
    pub usage: Usage,
    /// Times.
    pub timings: Timings,
    /// The seed of the draws.
    pub seed: u64,
    /// See [`Finished::prompt_logprobs`].
    pub prompt_logprobs: Vec<Logprob>,
    /// The second to the last output, where the request asked for several.
    pub alternatives: Vec<AlternativeOutput>,
}

/// One more output of a request that asked for several.
#[derive(Clone, Debug, PartialEq)]
pub struct AlternativeOutput {
    /// Generated tokens, the end token included.
    pub token_ids: Vec<TokenId>,
    /// Generated text, see [`RequestOutput::text`].
    pub text: String,
    /// How likely each generated token was, see [`RequestOutput::logprobs`].
    pub logprobs: Vec<Logprob>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The seed of its draws: that of the request plus its number.
    pub seed: u64,
}

/// Adds events up to a [`RequestOutput`].
#[derive(Clone, Debug, Default)]
pub struct OutputBuilder {
    prompt: Vec<TokenId>,
    outputs: Vec<Parts>,
}

/// What there is of one output.
#[derive(Clone, Debug, Default)]
struct Parts {
    token_ids: Vec<TokenId>,
    text: String,
    logprobs: Vec<Logprob>,
}

impl OutputBuilder {
    /// For the events of `stream`.
    pub fn new(stream: &TokenStream) -> Self {
        Self { prompt: stream.prompt_token_ids().to_vec(), outputs: Vec::new() }
    }

    /// Takes the next event; the last one gives the output.
    pub fn take(&mut self, event: TokenEvent) -> Option<RequestOutput> {
        match event {
            TokenEvent::Delta { index, token_ids, text, logprobs } => {
                let parts = self.output(index);
                parts.token_ids.extend(token_ids);
                parts.text.push_str(&text);
                parts.logprobs.extend(logprobs);
                None
            }
            TokenEvent::Finished(Finished { reason, usage, timings, seed, prompt_logprobs, alternatives }) => {
                let alternatives = (1..).zip(alternatives).map(|(index, end)| {
                    let Parts { token_ids, text, logprobs } = std::mem::take(self.output(index));
                    AlternativeOutput { token_ids, text, logprobs, finish_reason: end.finish_reason, seed: end.seed }
                });
                let alternatives = alternatives.collect();
                let Parts { token_ids, text, logprobs } = std::mem::take(self.output(0));
                Some(RequestOutput {
                    prompt_token_ids: std::mem::take(&mut self.prompt),
                    token_ids,
                    text,
                    logprobs,
                    finish_reason: reason,
                    usage,
                    timings,
                    seed,
                    prompt_logprobs,
                    alternatives,
                })
            }
        }
    }

    fn output(&mut self, index: usize) -> &mut Parts {
        if self.outputs.len() <= index {
            self.outputs.resize_with(index + 1, Default::default);
        }
        &mut self.outputs[index]
    }
}
