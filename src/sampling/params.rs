//! Sampling parameters of one request, validated once at the border.

use super::{Constraint, Whitespace};
use crate::base::TokenId;
use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// How to choose tokens and when to stop. `Default` is greedy decoding up to the end of the context.
///
/// The order is vLLM's: temperature, then min-p, top-k and top-p on what is left.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 picks the likeliest token; otherwise logits are divided by it. Range 0 to 100.
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
    /// Most tokens to generate; `None` fills the context.
    pub max_tokens: Option<u32>,
    /// Texts that end the output; they are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the output, besides the model's own end tokens.
    pub stop_token_ids: Vec<TokenId>,
    /// Go on after the model's end token.
    pub ignore_eos: bool,
    /// Makes tokens of the prompt and the output less likely: their positive logits are divided by it, negative ones multiplied
    /// (Keskar et al., 2019). 1 is off.
    pub repetition_penalty: f32,
    /// Taken off the logit of a token that the output contains. Range -2 to 2.
    pub presence_penalty: f32,
    /// Taken off the logit of a token for each time that the output contains it. Range -2 to 2.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens; -100 as good as forbids one.
    pub logit_bias: BTreeMap<TokenId, f32>,
    /// If given, no other token is sampled.
    pub allowed_token_ids: Option<Vec<TokenId>>,
    /// Texts that the output must not contain, tokenised with and without a space before them.
    pub bad_words: Vec<String>,
    /// Outputs that have fewer tokens do not end by an end token or a stop.
    pub min_tokens: u32,
    /// Keep the stop text at the end of the output.
    pub include_stop_str_in_output: bool,
    /// Report the log-probability of each generated token, and of so many of the likeliest ones, from the model's own logits.
    pub logprobs: Option<TopLogprobs>,
    /// The same for each token of the prompt but the first; the whole prompt is computed then.
    pub prompt_logprobs: Option<TopLogprobs>,
    /// Make text of the tokens.
    pub detokenize: bool,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Keep only so many of the prompt's last tokens.
    pub truncate_prompt_tokens: Option<u32>,
    /// End an output that repeats itself.
    pub repetition_detection: Option<RepetitionDetection>,
    /// What the output must look like.
    pub constraint: Option<Constraint>,
    /// White space in constrained JSON.
    pub whitespace: Whitespace,
}

/// How many of the likeliest tokens to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopLogprobs {
    /// So many, and the chosen one.
    Most(u32),
    /// The whole vocabulary.
    All,
}

/// When an output counts as caught in a loop: its end is one run of tokens, several times over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepetitionDetection {
    /// Longest run that counts, in tokens; at least `min_pattern_size`.
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

/// Outputs of one request.
const MAX_OUTPUTS: u32 = 1024;

impl SamplingParams {
    /// Greedy decoding of at most `max_tokens` tokens.
    pub fn greedy(max_tokens: u32) -> Self {
        Self { max_tokens: Some(max_tokens), ..Self::default() }
    }

    /// Whether the likeliest token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW
    }

    /// Checks every range.
    ///
    /// # Errors
    /// Names the parameter, its value and the range.
    pub fn validate(&self) -> Result<()> {
        let check = |ok: bool, name: &str, value: &dyn std::fmt::Display, range: &str| match ok {
            true => Ok(()),
            false => Err(Error::config(format!("{name} is {value}, but must be {range}"))),
        };
        let t = self.temperature;
        check(t.is_finite() && (0.0..=100.0).contains(&t), "temperature", &t, "between 0 and 100")?;
        check(self.top_p > 0.0 && self.top_p <= 1.0, "top_p", &self.top_p, "above 0 and at most 1")?;
        check((0.0..=1.0).contains(&self.min_p), "min_p", &self.min_p, "between 0 and 1")?;
        check((1..=MAX_OUTPUTS).contains(&self.n), "n", &self.n, "between 1 and 1024")?;
        if self.n > 1 && self.is_greedy() {
            return Err(Error::config(format!(
                "n is {}, but at temperature {t} all outputs would be the same; raise the temperature or leave n out",
                self.n
            )));
        }
        if let Some(max_tokens) = self.max_tokens {
            check(max_tokens >= 1, "max_tokens", &max_tokens, "at least 1 (leave it out to fill the context)")?;
        }
        match self.stop.iter().any(String::is_empty) {
            true => Err(Error::config("stop holds an empty text, which would end every output at once; remove it")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_parameter_and_the_value() {
        let cases = [
            (SamplingParams { temperature: -1.0, ..Default::default() }, "temperature is -1"),
            (SamplingParams { temperature: f32::NAN, ..Default::default() }, "temperature is NaN"),
            (SamplingParams { top_p: 0.0, ..Default::default() }, "top_p is 0"),
            (SamplingParams { min_p: 1.5, ..Default::default() }, "min_p is 1.5"),
            (SamplingParams { n: 0, ..Default::default() }, "n is 0"),
            (SamplingParams { n: 2, ..Default::default() }, "n is 2, but at temperature 0"),
            (SamplingParams { max_tokens: Some(0), ..Default::default() }, "max_tokens is 0"),
            (SamplingParams { stop: vec![String::new()], ..Default::default() }, "stop holds an empty text"),
        ];
        for (params, expected) in cases {
            let message = params.validate().unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
        SamplingParams::default().validate().unwrap();
    }
}
