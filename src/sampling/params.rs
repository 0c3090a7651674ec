//! Sampling parameters of one request, validated once at the border.

use crate::base::TokenId;
use crate::error::{Error, Result};
use bytemuck::{Pod, Zeroable};

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

/// Stop tokens that the device checks by itself; the host checks all of them.
pub const MAX_DEVICE_STOPS: usize = 8;

/// The part of a request that the sampler kernel reads from its slot. Mirrored in `shaders/lib/seq_state.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct SamplingRow {
    /// 0 for greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
    /// Low half of the seed.
    pub seed_low: u32,
    /// High half of the seed.
    pub seed_high: u32,
    /// Valid entries of `stops`.
    pub stop_count: u32,
    /// Keeps the list below aligned.
    pub reserved: u32,
    /// Tokens after which the device stops the row.
    pub stops: [TokenId; MAX_DEVICE_STOPS],
}

impl SamplingRow {
    /// The row for `params`; `seed` has been chosen, `stops` are all token-level stops of the request.
    pub fn new(params: &SamplingParams, seed: u64, stops: &[TokenId]) -> Self {
        let greedy = params.is_greedy();
        let mut row = Self {
            temperature: if greedy { 0.0 } else { params.temperature },
            top_k: if greedy { 0 } else { params.top_k },
            top_p: if greedy { 1.0 } else { params.top_p },
            min_p: if greedy { 0.0 } else { params.min_p },
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            stop_count: stops.len().min(MAX_DEVICE_STOPS) as u32,
            reserved: 0,
            stops: [0; MAX_DEVICE_STOPS],
        };
        for (to, from) in row.stops.iter_mut().zip(stops) {
            *to = *from;
        }
        row
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
