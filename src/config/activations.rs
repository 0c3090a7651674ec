//! How activations meet quantised weights.
//!
//! MEASURED, mean negative log-likelihood of 1,087 tokens (`tests/golden/smollm2/perplexity.json`) with SmolLM2-135M-Instruct in
//! Q4_1: f32 3.29631; whole numbers of eight bits in all products 3.30207, which is 0.17 % more, most of it from the products
//! behind the attention norm; of twelve bits 3.29627, which is no difference (in Q8_0: f32 3.30025, twelve bits 3.30040).
//! Sums over 32 columns of twelve bits times the largest codes of any format stay below 2^24, so that f32 holds them exactly.

use crate::error::{Error, Result};

/// How the activations of a product with quantised weights are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Activations {
    /// What is best: at present [`Int12`](Self::Int12).
    #[default]
    Auto,
    /// As computed, in single precision.
    F32,
    /// Rounded to whole numbers of twelve bits in each 32 columns, which makes products several times as fast. Weights that are
    /// not whole numbers times a scale (F32, F16, BF16, IQ4, MXFP4) are multiplied in single precision all the same.
    Int12,
}

impl Activations {
    /// Whether products take int12 where the weights allow it.
    pub const fn int12(self) -> bool {
        matches!(self, Self::Auto | Self::Int12)
    }

    /// Lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Int12 => "int12",
        }
    }
}

impl std::fmt::Display for Activations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Activations {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "f32" => Ok(Self::F32),
            "int12" => Ok(Self::Int12),
            _ => Err(Error::config(format!("activations is `{text}`, but must be auto, f32 or int12"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_refused() {
        for choice in [Activations::Auto, Activations::F32, Activations::Int12] {
            assert_eq!(choice.name().parse::<Activations>().unwrap(), choice);
        }
        let refused = "int4".parse::<Activations>().unwrap_err().to_string();
        assert!(refused.contains("`int4`") && refused.contains("auto, f32 or int12"), "{refused}");
    }
}
