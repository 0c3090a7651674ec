//! Sampling parameters for many prompts at once, and those that a model suggests.

use crate::error::{Error, Result};
use crate::model::generation::GenerationDefaults;
use crate::sampling::SamplingParams;

/// What a model's makers suggest (`generation_config.json`, or the sampling keys of a GGUF file), and greedy decoding where they
/// say nothing. As in transformers, `do_sample: false` means greedy, sampling without a temperature means 1, and a repetition
/// penalty counts for greedy decoding too.
pub fn default_params(defaults: &GenerationDefaults) -> SamplingParams {
    let mut greedy = SamplingParams::default();
    if let Some(penalty) = defaults.repetition_penalty {
        greedy.repetition_penalty = penalty as f32;
    }
    let sample = defaults.do_sample.unwrap_or(defaults.temperature.is_some());
    if !sample {
        return greedy;
    }
    SamplingParams {
        temperature: defaults.temperature.unwrap_or(1.0) as f32,
        top_k: defaults.top_k.map_or(greedy.top_k, |top_k| u32::try_from(top_k).unwrap_or(u32::MAX)),
        top_p: defaults.top_p.map_or(greedy.top_p, |top_p| top_p as f32),
        min_p: defaults.min_p.map_or(greedy.min_p, |min_p| min_p as f32),
        ..greedy
    }
}

/// Sampling parameters for a list of prompts.
#[derive(Clone, Debug)]
pub enum ParamsPerPrompt {
    /// The same for all.
    One(Box<SamplingParams>),
    /// One for each.
    Each(Vec<SamplingParams>),
}

impl ParamsPerPrompt {
    pub(super) fn spread(self, prompts: usize) -> Result<Vec<SamplingParams>> {
        match self {
            Self::One(params) => Ok(vec![*params; prompts]),
            Self::Each(list) if list.len() == prompts => Ok(list),
            Self::Each(list) => Err(Error::config(format!(
                "{prompts} prompts came with {} sampling parameters; give one for each, or a single one for all",
                list.len()
            ))),
        }
    }
}

impl From<SamplingParams> for ParamsPerPrompt {
    fn from(params: SamplingParams) -> Self {
        Self::One(Box::new(params))
    }
}

impl From<&SamplingParams> for ParamsPerPrompt {
    fn from(params: &SamplingParams) -> Self {
        Self::One(Box::new(params.clone()))
    }
}

impl From<Vec<SamplingParams>> for ParamsPerPrompt {
    fn from(list: Vec<SamplingParams>) -> Self {
        Self::Each(list)
    }
}

impl From<&[SamplingParams]> for ParamsPerPrompt {
    fn from(list: &[SamplingParams]) -> Self {
        Self::Each(list.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_makers_suggest_is_taken_where_they_sample() {
        let said = GenerationDefaults {
            do_sample: Some(true),
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            ..GenerationDefaults::default()
        };
        let expected = SamplingParams { temperature: 0.6, top_k: 20, top_p: 0.95, ..SamplingParams::default() };
        assert_eq!(default_params(&said), expected);
        assert!(default_params(&GenerationDefaults { do_sample: Some(false), ..said }).is_greedy());
        assert!(default_params(&GenerationDefaults { top_k: Some(50), ..Default::default() }).is_greedy());
        let bare = GenerationDefaults { do_sample: Some(true), ..GenerationDefaults::default() };
        assert_eq!(default_params(&bare).temperature, 1.0);
    }

    #[test]
    fn a_suggested_repetition_penalty_counts_with_and_without_sampling() {
        for do_sample in [Some(true), Some(false), None] {
            let said = GenerationDefaults { do_sample, repetition_penalty: Some(1.2), ..GenerationDefaults::default() };
            assert_eq!(default_params(&said).repetition_penalty, 1.2);
        }
        assert_eq!(default_params(&GenerationDefaults::default()).repetition_penalty, 1.0);
    }
}
