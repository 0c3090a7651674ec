//! What a model's makers say about sampling: `generation_config.json`, or the `general.sampling` keys of a GGUF file.

use super::config::Config;
use crate::error::{Error, Result};
use crate::weights::gguf::Metadata;

/// Sampling settings that come with a model; the command line takes them where it is given none. `None`: not said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// False: take the likeliest token, whatever the rest says.
    pub do_sample: Option<bool>,
    /// Divisor of the logits.
    pub temperature: Option<f64>,
    /// Number of likeliest tokens to keep; 0 keeps all.
    pub top_k: Option<usize>,
    /// Mass of likeliest tokens to keep.
    pub top_p: Option<f64>,
    /// Share of the likeliest token's probability below which a token is dropped.
    pub min_p: Option<f64>,
    /// Divisor of the logits of tokens that occurred; 1 does nothing.
    pub repetition_penalty: Option<f64>,
}

impl GenerationDefaults {
    /// Reads a `generation_config.json`.
    ///
    /// # Errors
    /// A setting has another type.
    pub fn from_config(config: &Config) -> Result<Self> {
        Ok(Self {
            do_sample: config.flag("do_sample")?,
            temperature: config.number("temperature")?,
            top_k: config.number("top_k")?.map(|count| whole_count("top_k", count)).transpose()?,
            top_p: config.number("top_p")?,
            min_p: config.number("min_p")?,
            repetition_penalty: config.number("repetition_penalty")?,
        })
    }

    /// Reads GGUF metadata.
    ///
    /// # Errors
    /// A setting has another type.
    pub fn from_gguf(metadata: Metadata<'_>) -> Result<Self> {
        // Metadata hold f32, whose nearest decimal is what was meant.
        let number = |name: &str| -> Result<Option<f64>> {
            let value = metadata.number(&format!("general.sampling.{name}"))?;
            Ok(value.map(|value| (value as f32).to_string().parse().unwrap_or(value)))
        };
        Ok(Self {
            do_sample: None,
            temperature: number("temp")?,
            top_k: number("top_k")?.map(|count| whole_count("general.sampling.top_k", count)).transpose()?,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repetition_penalty: number("penalty_repeat")?,
        })
    }

    /// The settings that were said, as name and value, in a fixed order.
    pub fn list(&self) -> Vec<(&'static str, String)> {
        let number = |value: Option<f64>| value.map(|value| value.to_string());
        let all = [
            ("do_sample", self.do_sample.map(|value| value.to_string())),
            ("temperature", number(self.temperature)),
            ("top_k", self.top_k.map(|value| value.to_string())),
            ("top_p", number(self.top_p)),
            ("min_p", number(self.min_p)),
            ("repetition_penalty", number(self.repetition_penalty)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// Negative counts are some makers' way to say "all", and some write 50.0.
fn whole_count(name: &str, count: f64) -> Result<usize> {
    match count {
        count if count <= 0.0 => Ok(0),
        count if count.fract() == 0.0 => Ok(count as usize),
        _ => Err(Error::load(format!("{name} should be a whole number, but is {count}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<GenerationDefaults> {
        GenerationDefaults::from_config(&Config::parse(text.as_bytes())?)
    }

    #[test]
    fn what_is_said_is_listed() {
        let defaults = read(
            r#"{"do_sample": true, "temperature": 1, "top_k": 64, "top_p": 0.95, "min_p": null, "repetition_penalty": 1.1}"#,
        )
        .unwrap();
        let list: Vec<String> = defaults.list().into_iter().map(|(name, value)| format!("{name} {value}")).collect();
        assert_eq!(list, ["do_sample true", "temperature 1", "top_k 64", "top_p 0.95", "repetition_penalty 1.1"]);
        assert_eq!(read("{}").unwrap(), GenerationDefaults::default());
    }

    #[test]
    fn counts_may_be_negative_or_written_with_a_point_but_not_broken() {
        assert_eq!(read(r#"{"top_k": -1}"#).unwrap().top_k, Some(0));
        assert_eq!(read(r#"{"top_k": 50.0}"#).unwrap().top_k, Some(50));
        assert!(read(r#"{"top_k": 50.5}"#).unwrap_err().to_string().contains("top_k should be a whole number"));
        assert!(read(r#"{"temperature": "hot"}"#).unwrap_err().to_string().contains("temperature should be a number"));
    }
}
