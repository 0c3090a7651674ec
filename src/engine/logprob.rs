//! How likely a token was, as it is reported to whoever asked.

use crate::base::TokenId;
use crate::runner::{StepResult, TokenLogprob};
use crate::sampling::TopLogprobs;

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
    /// What was `found` of `token`, with the likeliest tokens of `result` that the request `wanted`: a runner that cannot select so
    /// many brings all.
    pub(super) fn new(token: TokenId, found: TokenLogprob, result: &StepResult, wanted: Option<TopLogprobs>) -> Self {
        let TokenLogprob { logprob, rank, top } = found;
        let most = match wanted {
            None => 0,
            Some(TopLogprobs::Most(count)) => count as usize,
            Some(TopLogprobs::All) => usize::MAX,
        };
        let top = top.of(result).iter().take(most).map(|top| (top.token, top.logprob)).collect();
        Self { token, logprob, rank, top }
    }

    /// The probability, from 0 to 1.
    pub fn probability(&self) -> f64 {
        self.logprob.exp()
    }
}
