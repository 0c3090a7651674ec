//! What is asked of the engine.

use crate::base::TokenId;
use crate::sampling::SamplingParams;
use std::time::Instant;

/// What to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text, encoded with the special tokens that the model adds by itself. The text of special tokens becomes them.
    Text(String),
    /// Token ids, taken as they are.
    Tokens(Vec<TokenId>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for Prompt {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<Vec<TokenId>> for Prompt {
    fn from(tokens: Vec<TokenId>) -> Self {
        Self::Tokens(tokens)
    }
}

impl From<&[TokenId]> for Prompt {
    fn from(tokens: &[TokenId]) -> Self {
        Self::Tokens(tokens.to_vec())
    }
}

impl From<&Prompt> for Prompt {
    fn from(prompt: &Prompt) -> Self {
        prompt.clone()
    }
}

/// One prompt with its wishes.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What to continue.
    pub prompt: Prompt,
    /// How to choose tokens and when to stop.
    pub params: SamplingParams,
    /// Requests share cached prefixes only with those of equal salt. Give each tenant its own, and none can tell from
    /// timing what another asked.
    pub cache_salt: Option<String>,
    /// What to report of the prompt itself.
    pub scoring: Scoring,
    /// With the policy `priority`: smaller ones run first.
    pub priority: i32,
    /// With the policy `edf`: when it should be done. Later than now; missing it has no consequence.
    pub deadline: Option<Instant>,
}

/// What to report of the prompt itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scoring {
    /// Nothing: generate.
    #[default]
    Off,
    /// The log-probability of each prompt token but the first; generate nothing.
    Prompt,
}

impl Request {
    /// Continue `prompt`.
    pub fn new(prompt: impl Into<Prompt>, params: SamplingParams) -> Self {
        Self { prompt: prompt.into(), params, cache_salt: None, scoring: Scoring::Off, priority: 0, deadline: None }
    }

    /// Score the tokens of `prompt` and generate nothing.
    pub fn score(prompt: impl Into<Prompt>) -> Self {
        Self { scoring: Scoring::Prompt, ..Self::new(prompt, SamplingParams::default()) }
    }
}
