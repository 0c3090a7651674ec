//! Rotary embeddings as files describe them: both spellings of `config.json`, and GGUF keys.

use super::super::config::Config;
use super::super::spec::{RopeScaling, RopeSpec};
use crate::error::{Error, Result};
use crate::weights::gguf::Metadata;
use crate::weights::source::WeightSource;

/// Base of models that do not say, as in transformers and ggml.
const DEFAULT_THETA: f64 = 10_000.0;
/// Divisors of the frequencies in a GGUF file.
const GGUF_FACTORS: &str = "rope_freqs.weight";

/// Reads `rope_theta` with `rope_scaling`, or `rope_parameters`, which holds both.
///
/// # Errors
/// A kind of scaling that octavo does not support, or a parameter that is missing or out of range.
pub fn rope_from_config(config: &Config, head_dim: usize) -> Result<RopeSpec> {
    let parameters = match config.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => config.object("rope_scaling")?,
    };
    let find = |key: &str| -> Result<Option<f64>> {
        match parameters.as_ref().map(|parameters| parameters.number(key)).transpose()?.flatten() {
            Some(number) => Ok(Some(number)),
            None => config.number(key),
        }
    };
    let theta = find("rope_theta")?.unwrap_or(DEFAULT_THETA);
    let share = find("partial_rotary_factor")?.unwrap_or(1.0);
    if !(share > 0.0 && share <= 1.0) {
        return Err(Error::load(format!("partial_rotary_factor is {share}, but must be above 0 and at most 1")));
    }
    let scaling = match parameters {
        None => RopeScaling::Default,
        Some(parameters) => scaling_from_config(&parameters)?,
    };
    checked(RopeSpec { theta, rotary_dim: (head_dim as f64 * share) as usize, scaling }, head_dim)
}

fn scaling_from_config(parameters: &Config) -> Result<RopeScaling> {
    let kind = match parameters.text("rope_type")? {
        Some(kind) => kind,
        None => parameters.text("type")?.unwrap_or("default"),
    };
    if parameters.value("full_attention").is_some() || parameters.value("sliding_attention").is_some() {
        return Err(Error::load("rope_parameters differ by layer type, which octavo does not support yet"));
    }
    let required = |key: &str| {
        parameters.number(key)?.ok_or_else(|| Error::load(format!("rope scaling of type {kind} lacks {key}")))
    };
    match kind {
        "default" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear { factor: required("factor")? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: required("factor")?,
            low_freq_factor: required("low_freq_factor")?,
            high_freq_factor: required("high_freq_factor")?,
            original_context: parameters.required_size("original_max_position_embeddings")?,
        }),
        other => Err(unsupported_kind(other)),
    }
}

/// Reads the `rope.*` keys of a GGUF file and its tensor of divisors, if it has one.
///
/// # Errors
/// As [`rope_from_config`].
pub fn rope_from_gguf(
    metadata: Metadata<'_>,
    prefix: &str,
    head_dim: usize,
    tensors: &dyn WeightSource,
) -> Result<RopeSpec> {
    let key = |name: &str| format!("{prefix}.rope.{name}");
    let theta = metadata.number(&key("freq_base"))?.unwrap_or(DEFAULT_THETA);
    let rotary_dim = match metadata.unsigned(&key("dimension_count"))? {
        Some(count) => usize::try_from(count).unwrap_or(usize::MAX),
        None => head_dim,
    };
    let factor = match metadata.number(&key("scaling.factor"))? {
        Some(factor) => Some(factor),
        // The key of older files.
        None => metadata.number(&key("scale_linear"))?,
    };
    // A factor without a type means linear scaling; one of 0 or 1 means none.
    let stretch = factor.filter(|&factor| factor != 0.0 && factor != 1.0);
    let kind = metadata.text(&key("scaling.type"))?;
    let scaling = match (kind.unwrap_or("linear"), stretch) {
        ("none", _) | ("linear", None) => RopeScaling::Default,
        ("linear", Some(factor)) => RopeScaling::Linear { factor },
        (other, _) => return Err(unsupported_kind(other)),
    };
    let scaling = match (tensors.find(GGUF_FACTORS), scaling) {
        (None, scaling) => scaling,
        (Some(index), RopeScaling::Default) => RopeScaling::Factors { factors: read_factors(tensors, index)? },
        (Some(_), _) => {
            return Err(Error::load(format!("{GGUF_FACTORS} together with {kind:?} rope scaling is not supported")));
        }
    };
    checked(RopeSpec { theta, rotary_dim, scaling }, head_dim)
}

fn read_factors(tensors: &dyn WeightSource, index: usize) -> Result<Vec<f32>> {
    let info = &tensors.tensors()[index];
    if info.dtype != crate::base::DType::F32 {
        return Err(Error::load(format!("{GGUF_FACTORS} has type {}, but must be f32", info.dtype)));
    }
    let words = tensors.bytes(index).chunks_exact(4);
    Ok(words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
}

fn checked(rope: RopeSpec, head_dim: usize) -> Result<RopeSpec> {
    let positive = |name: &str, value: f64| match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => Err(Error::load(format!("the rotary embedding's {name} is {value}, but must be above 0"))),
    };
    positive("base", rope.theta)?;
    if rope.rotary_dim == 0 || !rope.rotary_dim.is_multiple_of(2) || rope.rotary_dim > head_dim {
        return Err(Error::load(format!(
            "{} of {head_dim} elements of a head would rotate, but it must be an even number of them",
            rope.rotary_dim
        )));
    }
    match &rope.scaling {
        RopeScaling::Default => {}
        RopeScaling::Linear { factor } => positive("factor", *factor)?,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            positive("factor", *factor)?;
            positive("low_freq_factor", *low_freq_factor)?;
            positive("original context", *original_context as f64)?;
            // The ramp between them needs a width.
            positive("high_freq_factor minus low_freq_factor", high_freq_factor - low_freq_factor)?;
        }
        RopeScaling::Factors { factors } => {
            if factors.len() != rope.rotary_dim / 2 {
                return Err(Error::load(format!(
                    "{GGUF_FACTORS} has {} elements, but {} are needed",
                    factors.len(),
                    rope.rotary_dim / 2
                )));
            }
            factors.iter().try_for_each(|factor| positive("divisor", f64::from(*factor)))?;
        }
    }
    Ok(rope)
}

fn unsupported_kind(kind: &str) -> Error {
    Error::load(format!("rope scaling of type {kind} is not supported yet; supported: default, linear, llama3"))
}
