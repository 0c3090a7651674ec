//! Sampling parameters of one request. How they are set in a chain is in `builder`, what is refused in `validate`.

use super::{Constraint, Whitespace};
use crate::base::TokenId;
use std::collections::BTreeMap;

/// How to choose tokens and when to stop. `Default` is greedy decoding up to the end of the context.
///
/// ```
/// use octavo::SamplingParams;
///
/// let varied = SamplingParams::sampled(0.8).top_p(0.95).seed(7).stop("\n").max_tokens(200);
/// let the_same = SamplingParams {
///     temperature: 0.8,
///     top_p: 0.95,
///     seed: Some(7),
///     stop: vec!["\n".into()],
///     max_tokens: Some(200),
///     ..SamplingParams::default()
/// };
/// assert_eq!(varied, the_same);
/// ```
///
/// A token is chosen in this order, which is vLLM's: the mask of `constraint` and `allowed_token_ids`; `bad_words`; `min_tokens`;
/// `logit_bias`; `repetition_penalty`; `frequency_penalty`; `presence_penalty`; if greedy the likeliest token; otherwise
/// `temperature`, `min_p`, `top_k` and `top_p`, each on what the one before left, and a draw that depends on nothing but the
/// logits, the seed and the token's place. Log-probabilities are those of the model's own logits, before all of this.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 picks the likeliest token; otherwise logits are divided by it. Range 0 to 100. Below 0.00001 it counts as 0, and from
    /// there to 0.01 as 0.01.
    pub temperature: f32,
    /// Keep the k likeliest tokens (ties with the k-th kept); 0 keeps all.
    pub top_k: u32,
    /// Keep the likeliest tokens until their mass reaches this (ties with the last one kept). Range (0, 1].
    pub top_p: f32,
    /// Drop tokens less likely than this share of the likeliest. Range [0, 1].
    pub min_p: f32,
    /// Outputs for the prompt, which they share; above 1 only with a temperature above 0. Range 1 to 1024.
    pub n: u32,
    /// Fixes the draws. `None` takes a fresh seed for each request. Of several outputs, number i draws as a request of its own
    /// with seed + i would.
    pub seed: Option<u64>,
    /// Most tokens to generate, at least 1; `None` fills the context.
    pub max_tokens: Option<u32>,
    /// Texts that end the output. They are not part of it, see [`include_stop_str_in_output`](Self::include_stop_str_in_output).
    pub stop: Vec<String>,
    /// Tokens that end the output, besides the model's own end tokens.
    pub stop_token_ids: Vec<TokenId>,
    /// Go on after the model's end token; an output with a constraint ends at it all the same.
    pub ignore_eos: bool,
    /// Makes tokens of the prompt and the output less likely: their positive logits are divided by it, negative ones multiplied
    /// (Keskar et al., 2019). Above 0; 1 is off.
    pub repetition_penalty: f32,
    /// Taken off the logit of a token that the output contains. Range -2 to 2; 0 is off.
    pub presence_penalty: f32,
    /// Taken off the logit of a token for each time that the output contains it. Range -2 to 2; 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens. Beyond -100 and 100 it counts as these; -100 as good as forbids a token.
    pub logit_bias: BTreeMap<TokenId, f32>,
    /// If given, no other token is sampled; at least one. Where a constraint lets the output end and none of them may follow, it ends,
    /// whether or not they have an end token.
    pub allowed_token_ids: Option<Vec<TokenId>>,
    /// Texts that the output must not contain, tokenised with and without a space before them; at most [`MAX_BAD_WORDS`]. What is
    /// forbidden is the run of tokens: other tokens that spell the same may come.
    pub bad_words: Vec<String>,
    /// Outputs that have fewer tokens do not end by an end token, a stop or a repetition. At most `max_tokens`. Stop tokens are not
    /// sampled until then; a stop text that is complete by then has no effect.
    pub min_tokens: u32,
    /// Keep the stop at the end of the output: the stop text, or the text of the stop token, which a special token has none of as
    /// long as these are skipped.
    pub include_stop_str_in_output: bool,
    /// Report the log-probability and rank of each generated token, and of so many of the likeliest ones, from the model's own
    /// logits.
    pub logprobs: Option<TopLogprobs>,
    /// The same for each token of the prompt but the first; the whole prompt is computed then.
    pub prompt_logprobs: Option<TopLogprobs>,
    /// Make text of the tokens. Without it there are no stop texts.
    pub detokenize: bool,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Keep only so many of the prompt's last tokens, at least 1.
    pub truncate_prompt_tokens: Option<u32>,
    /// End an output that repeats itself.
    pub repetition_detection: Option<RepetitionDetection>,
    /// What the output must look like.
    pub constraint: Option<Constraint>,
    /// White space in constrained JSON.
    pub whitespace: Whitespace,
}

/// Most texts in [`SamplingParams::bad_words`].
pub const MAX_BAD_WORDS: usize = 256;

/// How many of the likeliest tokens to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopLogprobs {
    /// So many, and the chosen one.
    Most(u32),
    /// The whole vocabulary.
    All,
}

impl From<u32> for TopLogprobs {
    fn from(count: u32) -> Self {
        Self::Most(count)
    }
}

/// When an output counts as caught in a loop: its end is one run of tokens, several times over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepetitionDetection {
    /// Longest run that counts, in tokens; from `min_pattern_size` to [`MAX_PATTERN_SIZE`](super::repetition::MAX_PATTERN_SIZE).
    pub max_pattern_size: u32,
    /// Shortest run that counts; at least 1.
    pub min_pattern_size: u32,
    /// How often it must stand there; at least 2.
    pub min_count: u32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            n: 1,
            seed: None,
            max_tokens: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            allowed_token_ids: None,
            bad_words: Vec::new(),
            min_tokens: 0,
            include_stop_str_in_output: false,
            logprobs: None,
            prompt_logprobs: None,
            detokenize: true,
            skip_special_tokens: true,
            truncate_prompt_tokens: None,
            repetition_detection: None,
            constraint: None,
            whitespace: Whitespace::Compact,
        }
    }
}

/// Below this, temperature counts as zero: the quotient would overflow f32 for ordinary logits.
const GREEDY_BELOW: f32 = 1e-5;

impl SamplingParams {
    /// Greedy decoding of at most `max_tokens` tokens.
    pub fn greedy(max_tokens: u32) -> Self {
        Self { max_tokens: Some(max_tokens), ..Self::default() }
    }

    /// Draws at `temperature`, up to the end of the context.
    pub fn sampled(temperature: f32) -> Self {
        Self { temperature, ..Self::default() }
    }

    /// Whether the likeliest token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW
    }

    /// Names of the parameters that are in use and can forbid tokens.
    pub fn restrictions(&self) -> Vec<&'static str> {
        let in_use = [
            (self.constraint.is_some(), self.constraint.as_ref().map_or("", Constraint::name)),
            (self.allowed_token_ids.is_some(), "allowed_token_ids"),
            (!self.bad_words.is_empty(), "bad_words"),
            (self.min_tokens > 0, "min_tokens"),
        ];
        in_use.into_iter().filter(|(used, _)| *used).map(|(_, name)| name).collect()
    }
}
