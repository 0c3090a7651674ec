//! Rotary embeddings as GGUF metadata and tensors describe them. Keys and formulas as in llama.cpp.

use super::super::spec::{RopeScaling, RopeSpec};
use super::rope_config::{checked, longrope_attention_factor, unsupported_kind};
use super::uniform::Keys;
use crate::error::{Error, Result};
use crate::weights::source::WeightSource;

/// Base of models that do not say, as in ggml.
const DEFAULT_THETA: f64 = 10_000.0;
/// Divisors of the frequencies, of files whose scaling has been worked out when they were written (Llama 3).
const FACTORS: &str = "rope_freqs.weight";
/// Two sets of divisors, for long and for short contexts.
const LONG_FACTORS: &str = "rope_factors_long.weight";
const SHORT_FACTORS: &str = "rope_factors_short.weight";

/// Reads the `rope.*` keys of a GGUF file and its tensors of divisors, if it has some.
///
/// # Errors
/// A kind of scaling that octavo does not support, or a parameter that is missing or out of range.
pub fn rope_from_gguf(keys: &Keys<'_>, head_dim: usize, tensors: &dyn WeightSource) -> Result<RopeSpec> {
    let theta = keys.number("rope.freq_base")?.unwrap_or(DEFAULT_THETA);
    let rotary_dim = keys.size("rope.dimension_count")?.unwrap_or(head_dim);
    let factor = match keys.number("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        // The key of older files.
        None => keys.number("rope.scale_linear")?,
    };
    // A factor without a type means linear scaling; one of 0 or 1 means none.
    let stretch = factor.filter(|&factor| factor != 0.0 && factor != 1.0);
    let kind = keys.metadata.text(&keys.name("rope.scaling.type"))?;
    let scaling = if tensors.find(LONG_FACTORS).is_some() {
        // Files of Phi-3 name no type.
        longrope(keys, tensors)?
    } else {
        match (kind.unwrap_or("linear"), stretch) {
            ("none", _) | ("linear", None) => RopeScaling::Default,
            ("linear", Some(factor)) => RopeScaling::Linear { factor },
            ("yarn", _) => yarn(keys, factor.filter(|&factor| factor != 0.0).unwrap_or(1.0))?,
            ("longrope", _) => return Err(Error::load(format!("rope scaling of type longrope lacks {LONG_FACTORS}"))),
            (other, _) => return Err(unsupported_kind(other)),
        }
    };
    let scaling = match (tensors.find(FACTORS), scaling) {
        (None, scaling) => scaling,
        (Some(_), RopeScaling::Default) => RopeScaling::Factors { factors: read_factors(tensors, FACTORS)? },
        (Some(_), _) => {
            return Err(Error::load(format!("{FACTORS} together with {kind:?} rope scaling is not supported")));
        }
    };
    checked(RopeSpec { theta, rotary_dim, scaling }, head_dim)
}

fn yarn(keys: &Keys<'_>, factor: f64) -> Result<RopeScaling> {
    if keys.number("rope.scaling.yarn_ext_factor")?.is_some_and(|share| share != 1.0 && share >= 0.0) {
        return Err(Error::load(format!(
            "GGUF metadata {} is not 1, which octavo does not support",
            keys.name("rope.scaling.yarn_ext_factor")
        )));
    }
    let original_context = match keys.size("rope.scaling.original_context_length")? {
        Some(original) if original > 0 => original,
        _ => keys.required("context_length")?,
    };
    let number =
        |key: &str, default: f64| Ok::<_, Error>(keys.number(&format!("rope.scaling.{key}"))?.unwrap_or(default));
    // ggml applies YaRN's own magnitude besides the factor that the file names.
    let magnitude = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
    Ok(RopeScaling::Yarn {
        factor,
        original_context,
        beta_fast: number("yarn_beta_fast", 32.0)?,
        beta_slow: number("yarn_beta_slow", 1.0)?,
        truncate: true,
        attention_factor: number("attn_factor", 1.0)? * magnitude,
    })
}

fn longrope(keys: &Keys<'_>, tensors: &dyn WeightSource) -> Result<RopeScaling> {
    let original_context = keys.required("rope.scaling.original_context_length")?;
    let attention_factor = match keys.number("rope.scaling.attn_factor")? {
        Some(factor) => factor,
        None => {
            let factor = keys.required("context_length")? as f64 / original_context as f64;
            longrope_attention_factor(factor, original_context)
        }
    };
    Ok(RopeScaling::LongRope {
        short: read_factors(tensors, SHORT_FACTORS)?,
        long: read_factors(tensors, LONG_FACTORS)?,
        original_context,
        attention_factor,
    })
}

fn read_factors(tensors: &dyn WeightSource, name: &str) -> Result<Vec<f32>> {
    let index = tensors.find(name).ok_or_else(|| Error::load(format!("tensor {name} is missing from the model")))?;
    let info = &tensors.tensors()[index];
    if info.dtype != crate::base::DType::F32 {
        return Err(Error::load(format!("{name} has type {}, but must be f32", info.dtype)));
    }
    let words = tensors.bytes(index).chunks_exact(4);
    Ok(words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
}
