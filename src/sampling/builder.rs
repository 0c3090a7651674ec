//! Setting sampling parameters in a chain: `SamplingParams::sampled(0.8).top_p(0.95).seed(7)`. Each method sets or adds to the field
//! that it is named after; nothing is checked before [`validate`](SamplingParams::validate).

use super::params::{RepetitionDetection, SamplingParams, TopLogprobs};
use super::{Constraint, Grammar, Whitespace};
use crate::base::TokenId;

/// Most setters only put a value into its field.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($value:ty) => $make:expr;)*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(mut self, value: $value) -> Self {
            self.$name = $make(value);
            self
        })*
    };
}

/// Puts a value where it may be left out.
fn given<T>(value: T) -> Option<T> {
    Some(value)
}

/// Puts a value as it is.
fn plain<T>(value: T) -> T {
    value
}

impl SamplingParams {
    setters! {
        /// Draws among the k likeliest tokens.
        top_k(u32) => plain;
        /// Draws among the likeliest tokens that hold this share of the probability.
        top_p(f32) => plain;
        /// Drops tokens less likely than this share of the likeliest.
        min_p(f32) => plain;
        /// Asks for several outputs.
        n(u32) => plain;
        /// Fixes the draws.
        seed(u64) => given;
        /// Ends the output after so many tokens.
        max_tokens(u32) => given;
        /// Does not let the output end before it has so many tokens.
        min_tokens(u32) => plain;
        /// Makes tokens of the prompt and the output less likely; 1 is off.
        repetition_penalty(f32) => plain;
        /// Makes tokens of the output less likely.
        presence_penalty(f32) => plain;
        /// Makes tokens of the output less likely, each time more.
        frequency_penalty(f32) => plain;
        /// Keeps only so many of the prompt's last tokens.
        truncate_prompt_tokens(u32) => given;
        /// Ends an output that repeats itself.
        repetition_detection(RepetitionDetection) => given;
        /// Says what the output must look like.
        constraint(Constraint) => given;
        /// Allows white space in constrained JSON.
        whitespace(Whitespace) => plain;
    }

    /// Adds a text that ends the output.
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }

    /// Adds a token that ends the output.
    #[must_use]
    pub fn stop_token_id(mut self, token: TokenId) -> Self {
        self.stop_token_ids.push(token);
        self
    }

    /// Goes on after the model's end token.
    #[must_use]
    pub fn ignore_eos(mut self) -> Self {
        self.ignore_eos = true;
        self
    }

    /// Keeps the stop at the end of the output.
    #[must_use]
    pub fn include_stop_str_in_output(mut self) -> Self {
        self.include_stop_str_in_output = true;
        self
    }

    /// Adds to the logit of `token`, in place of what was set for it before.
    #[must_use]
    pub fn logit_bias(mut self, token: TokenId, bias: f32) -> Self {
        self.logit_bias.insert(token, bias);
        self
    }

    /// Samples no other tokens.
    #[must_use]
    pub fn allowed_token_ids(mut self, tokens: impl IntoIterator<Item = TokenId>) -> Self {
        self.allowed_token_ids = Some(tokens.into_iter().collect());
        self
    }

    /// Adds a text that the output must not contain.
    #[must_use]
    pub fn bad_word(mut self, text: impl Into<String>) -> Self {
        self.bad_words.push(text.into());
        self
    }

    /// Reports how likely each generated token was, and so many of the likeliest ones: a number, or [`TopLogprobs::All`].
    #[must_use]
    pub fn logprobs(mut self, top: impl Into<TopLogprobs>) -> Self {
        self.logprobs = Some(top.into());
        self
    }

    /// The same for each token of the prompt but the first.
    #[must_use]
    pub fn prompt_logprobs(mut self, top: impl Into<TopLogprobs>) -> Self {
        self.prompt_logprobs = Some(top.into());
        self
    }

    /// Makes no text of the tokens.
    #[must_use]
    pub fn without_text(mut self) -> Self {
        self.detokenize = false;
        self
    }

    /// Leaves special tokens in the text.
    #[must_use]
    pub fn keep_special_tokens(mut self) -> Self {
        self.skip_special_tokens = false;
        self
    }

    /// The output is a JSON value that `schema` accepts.
    #[must_use]
    pub fn json_schema(self, schema: impl Into<serde_json::Value>) -> Self {
        self.constraint(Constraint::JsonSchema(schema.into()))
    }

    /// The output is a JSON object.
    #[must_use]
    pub fn json_object(self) -> Self {
        self.constraint(Constraint::JsonObject)
    }

    /// The output is a text that all of `pattern` matches.
    #[must_use]
    pub fn regex(self, pattern: impl Into<String>) -> Self {
        self.constraint(Constraint::Regex(pattern.into()))
    }

    /// The output is one of `texts`.
    #[must_use]
    pub fn choice<T: Into<String>>(self, texts: impl IntoIterator<Item = T>) -> Self {
        self.constraint(Constraint::Choice(texts.into_iter().map(Into::into).collect()))
    }

    /// The output is a text of the language of `grammar`.
    #[must_use]
    pub fn grammar(self, grammar: Grammar) -> Self {
        self.constraint(Constraint::Grammar(grammar))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_chain_sets_what_an_update_of_the_struct_sets() {
        let detection = RepetitionDetection { max_pattern_size: 8, min_pattern_size: 2, min_count: 3 };
        let chain = (SamplingParams::sampled(0.7).top_k(40).top_p(0.9).min_p(0.05).n(3).seed(11))
            .max_tokens(100)
            .min_tokens(10)
            .stop("\n\n")
            .stop("END")
            .stop_token_id(5)
            .ignore_eos()
            .include_stop_str_in_output()
            .repetition_penalty(1.1)
            .presence_penalty(0.5)
            .frequency_penalty(-0.5)
            .logit_bias(7, 1.0)
            .logit_bias(7, -3.0)
            .allowed_token_ids([1, 2])
            .bad_word("never")
            .logprobs(5)
            .prompt_logprobs(TopLogprobs::All)
            .without_text()
            .keep_special_tokens()
            .truncate_prompt_tokens(64)
            .repetition_detection(detection)
            .json_object()
            .choice(["yes", "no"])
            .whitespace(Whitespace::UpTo(4));
        let fields = SamplingParams {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.05,
            n: 3,
            seed: Some(11),
            max_tokens: Some(100),
            stop: vec!["\n\n".into(), "END".into()],
            stop_token_ids: vec![5],
            ignore_eos: true,
            repetition_penalty: 1.1,
            presence_penalty: 0.5,
            frequency_penalty: -0.5,
            logit_bias: BTreeMap::from([(7, -3.0)]),
            allowed_token_ids: Some(vec![1, 2]),
            bad_words: vec!["never".into()],
            min_tokens: 10,
            include_stop_str_in_output: true,
            logprobs: Some(TopLogprobs::Most(5)),
            prompt_logprobs: Some(TopLogprobs::All),
            detokenize: false,
            skip_special_tokens: false,
            truncate_prompt_tokens: Some(64),
            repetition_detection: Some(detection),
            constraint: Some(Constraint::Choice(vec!["yes".into(), "no".into()])),
            whitespace: Whitespace::UpTo(4),
        };
        assert_eq!(chain, fields);
    }
}
