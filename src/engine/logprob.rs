//! How likely a token was, as it is reported to whoever asked.

use crate::base::TokenId;
use crate::runner::{StepResult, TokenLogprob, TopRange};

/// How likely a token was by the model's own logits: before temperature, penalties, biases, masks and filters, which decided what
/// was chosen. So a token that was chosen may be an unlikely one here, and under a constraint even the likeliest ones may be
/// tokens that were not allowed. All numbers are finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    /// The token at this place.
    pub token: TokenId,
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// 1 plus the number of likelier tokens; 0 in the [scores](super::Request::score) of a prompt whose
    /// [`prompt_logprobs`](crate::SamplingParams::prompt_logprobs) were not asked for.
    pub rank: u32,
    /// The likeliest tokens at this place and the logarithms of their probabilities, likeliest first; as many as were asked for,
    /// whether `token` is among them or not.
    pub top: Vec<(TokenId, f32)>,
}

impl Logprob {
    pub(super) fn new(token: TokenId, found: TokenLogprob, result: &StepResult) -> Self {
        let TokenLogprob { logprob, rank, top } = found;
        Self { token, logprob, rank, top: likeliest(top, result) }
    }

    /// The probability, from 0 to 1.
    pub fn probability(&self) -> f64 {
        self.logprob.exp()
    }
}

/// The tokens of `range` among those of `result`.
fn likeliest(range: TopRange, result: &StepResult) -> Vec<(TokenId, f32)> {
    range.of(result).iter().map(|top| (top.token, top.logprob)).collect()
}
