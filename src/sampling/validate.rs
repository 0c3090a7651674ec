//! The ranges of sampling parameters. What depends on the vocabulary or on the engine's options is checked by the engine.

use super::params::{MAX_BAD_WORDS, RepetitionDetection, SamplingParams};
use super::repetition::MAX_PATTERN_SIZE;
use crate::error::{Error, Result};
use std::fmt::Display;

/// Outputs of one request.
const MAX_OUTPUTS: u32 = 1024;

/// Penalties beyond it, either way, drown what the model says.
const MAX_PENALTY: f32 = 2.0;

impl SamplingParams {
    /// Checks every range, and parameters against each other.
    ///
    /// # Errors
    /// Names the parameter, its value and the range.
    pub fn validate(&self) -> Result<()> {
        self.check_choice()?;
        self.check_penalties()?;
        self.check_lists()?;
        self.check_ends()?;
        let truncated = self.truncate_prompt_tokens.unwrap_or(1);
        check(
            truncated >= 1,
            "truncate_prompt_tokens",
            &truncated,
            "at least 1 (leave it out to keep the whole prompt)",
        )
    }

    fn check_choice(&self) -> Result<()> {
        let t = self.temperature;
        check((0.0..=100.0).contains(&t), "temperature", &t, "between 0 and 100")?;
        check(self.top_p > 0.0 && self.top_p <= 1.0, "top_p", &self.top_p, "above 0 and at most 1")?;
        check((0.0..=1.0).contains(&self.min_p), "min_p", &self.min_p, "between 0 and 1")?;
        check((1..=MAX_OUTPUTS).contains(&self.n), "n", &self.n, "between 1 and 1024")?;
        if self.n > 1 && self.is_greedy() {
            return Err(Error::config(format!(
                "n is {}, but at temperature {t} all outputs would be the same; raise the temperature or leave n out",
                self.n
            )));
        }
        Ok(())
    }

    fn check_penalties(&self) -> Result<()> {
        let repetition = self.repetition_penalty;
        check(repetition > 0.0 && repetition.is_finite(), "repetition_penalty", &repetition, "above 0 and finite")?;
        for (name, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            check(value.abs() <= MAX_PENALTY, name, &value, "between -2 and 2")?;
        }
        Ok(())
    }

    fn check_lists(&self) -> Result<()> {
        if let Some((token, bias)) = self.logit_bias.iter().find(|(_, bias)| !bias.is_finite()) {
            return Err(Error::config(format!("logit_bias of token {token} is {bias}, but must be a finite number")));
        }
        if self.allowed_token_ids.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::config(
                "allowed_token_ids is empty, so that no token could come; leave it out to allow all",
            ));
        }
        let count = self.bad_words.len();
        if count > MAX_BAD_WORDS {
            return Err(Error::config(format!(
                "bad_words holds {count} texts, but at most {MAX_BAD_WORDS} are possible"
            )));
        }
        match self.bad_words.iter().any(|word| word.trim_start().is_empty()) {
            true => Err(Error::config("bad_words holds an empty text, which every output contains; remove it")),
            false => Ok(()),
        }
    }

    fn check_ends(&self) -> Result<()> {
        if let Some(max_tokens) = self.max_tokens {
            check(max_tokens >= 1, "max_tokens", &max_tokens, "at least 1 (leave it out to fill the context)")?;
            if self.min_tokens > max_tokens {
                return Err(Error::config(format!(
                    "min_tokens is {}, but must be at most max_tokens, which is {max_tokens}",
                    self.min_tokens
                )));
            }
        }
        if self.stop.iter().any(String::is_empty) {
            return Err(Error::config("stop holds an empty text, which would end every output at once; remove it"));
        }
        if !self.detokenize && !self.stop.is_empty() {
            return Err(Error::config(format!(
                "stop is {:?}, but detokenize is false, so that there is no text to find it in; use stop_token_ids",
                self.stop
            )));
        }
        self.repetition_detection.map_or(Ok(()), check_detection)
    }
}

fn check_detection(detection: RepetitionDetection) -> Result<()> {
    let RepetitionDetection { max_pattern_size: max, min_pattern_size: min, min_count } = detection;
    check(min >= 1, "repetition_detection's min_pattern_size", &min, "at least 1")?;
    let range = format!("between min_pattern_size, which is {min}, and {MAX_PATTERN_SIZE}");
    check((min..=MAX_PATTERN_SIZE).contains(&max), "repetition_detection's max_pattern_size", &max, &range)?;
    check(min_count >= 2, "repetition_detection's min_count", &min_count, "at least 2")
}

fn check(ok: bool, name: &str, value: &dyn Display, range: &str) -> Result<()> {
    match ok {
        true => Ok(()),
        false => Err(Error::config(format!("{name} is {value}, but must be {range}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> SamplingParams {
        SamplingParams::default()
    }

    fn detection(max_pattern_size: u32, min_pattern_size: u32, min_count: u32) -> SamplingParams {
        base().repetition_detection(RepetitionDetection { max_pattern_size, min_pattern_size, min_count })
    }

    #[test]
    fn refusals_name_the_parameter_and_the_value() {
        let words = |count: usize| SamplingParams { bad_words: vec!["w".into(); count], ..base() };
        let cases = [
            (SamplingParams { temperature: -1.0, ..base() }, "temperature is -1, but must be between 0 and 100"),
            (SamplingParams { temperature: f32::NAN, ..base() }, "temperature is NaN"),
            (SamplingParams { temperature: f32::INFINITY, ..base() }, "temperature is inf"),
            (SamplingParams { temperature: 100.1, ..base() }, "temperature is 100.1"),
            (SamplingParams { top_p: 0.0, ..base() }, "top_p is 0, but must be above 0"),
            (SamplingParams { top_p: f32::NAN, ..base() }, "top_p is NaN"),
            (SamplingParams { min_p: 1.5, ..base() }, "min_p is 1.5, but must be between 0 and 1"),
            (SamplingParams { n: 0, ..base() }, "n is 0"),
            (SamplingParams { n: 1025, temperature: 1.0, ..base() }, "n is 1025, but must be between 1 and 1024"),
            (SamplingParams { n: 2, ..base() }, "n is 2, but at temperature 0"),
            (SamplingParams { max_tokens: Some(0), ..base() }, "max_tokens is 0, but must be at least 1"),
            (SamplingParams { stop: vec![String::new()], ..base() }, "stop holds an empty text"),
            (SamplingParams { detokenize: false, ..base().stop("END") }, "stop is [\"END\"], but detokenize is false"),
            (SamplingParams { repetition_penalty: 0.0, ..base() }, "repetition_penalty is 0, but must be above 0"),
            (SamplingParams { repetition_penalty: f32::INFINITY, ..base() }, "repetition_penalty is inf"),
            (
                SamplingParams { presence_penalty: 2.1, ..base() },
                "presence_penalty is 2.1, but must be between -2 and 2",
            ),
            (SamplingParams { frequency_penalty: -2.5, ..base() }, "frequency_penalty is -2.5"),
            (SamplingParams { frequency_penalty: f32::NAN, ..base() }, "frequency_penalty is NaN"),
            (base().logit_bias(3, 1.0).logit_bias(7, f32::NAN), "logit_bias of token 7 is NaN"),
            (base().allowed_token_ids([]), "allowed_token_ids is empty"),
            (words(MAX_BAD_WORDS + 1), "bad_words holds 257 texts, but at most 256"),
            (base().bad_word("fine").bad_word(""), "bad_words holds an empty text"),
            (base().bad_word(" "), "bad_words holds an empty text"),
            (base().min_tokens(5).max_tokens(4), "min_tokens is 5, but must be at most max_tokens, which is 4"),
            (base().truncate_prompt_tokens(0), "truncate_prompt_tokens is 0, but must be at least 1"),
            (detection(3, 0, 2), "repetition_detection's min_pattern_size is 0"),
            (detection(3, 4, 2), "repetition_detection's max_pattern_size is 3, but must be between min_pattern_size"),
            (detection(1025, 4, 2), "repetition_detection's max_pattern_size is 1025"),
            (detection(4, 4, 1), "repetition_detection's min_count is 1, but must be at least 2"),
        ];
        for (params, expected) in cases {
            let message = params.validate().unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn the_ends_of_the_ranges_are_inside() {
        let fine = [
            base(),
            SamplingParams::sampled(100.0).top_p(1.0).min_p(1.0).n(1024).top_k(u32::MAX),
            SamplingParams::sampled(0.0).presence_penalty(-2.0).frequency_penalty(2.0).repetition_penalty(1e-6),
            SamplingParams { bad_words: vec!["w".into(); MAX_BAD_WORDS], ..base() },
            base().max_tokens(1).min_tokens(1).truncate_prompt_tokens(1).logit_bias(0, 1e6),
            detection(MAX_PATTERN_SIZE, MAX_PATTERN_SIZE, 2),
            detection(1, 1, u32::MAX),
            SamplingParams { detokenize: false, ..base() },
        ];
        for params in fine {
            params.validate().unwrap();
        }
    }
}
