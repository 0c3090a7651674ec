//! Rotary embeddings as `config.json` describes them, in both spellings: `rope_theta` with `rope_scaling`, or
//! `rope_parameters`, which holds both. What each parameter means and what it is when missing follows transformers'
//! `modeling_rope_utils.py`.

use super::super::config::Config;
use super::super::spec::{RopeScaling, RopeSpec};
use crate::error::{Error, Result};

/// Base of models that do not say.
const DEFAULT_THETA: f64 = 10_000.0;
/// Ends of YaRN's ramp where files do not say, from its paper.
const DEFAULT_BETAS: [f64; 2] = [32.0, 1.0];

/// Reads the one rotary embedding of a model whose heads are `head_dim` wide.
///
/// # Errors
/// A kind of scaling that octavo does not support, or a parameter that is missing or out of range.
pub fn rope_from_config(config: &Config, head_dim: usize) -> Result<RopeSpec> {
    rope_with_default(config, head_dim, DEFAULT_THETA)
}

/// [`rope_from_config`] of a family with another base where files do not say.
///
/// # Errors
/// As [`rope_from_config`].
pub fn rope_with_default(config: &Config, head_dim: usize, default_theta: f64) -> Result<RopeSpec> {
    let parameters = match config.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => config.object("rope_scaling")?,
    };
    if let Some(parameters) = &parameters {
        for layer_type in ["full_attention", "sliding_attention"] {
            if parameters.value(layer_type).is_some() {
                return Err(Error::load(format!(
                    "rope_parameters has {layer_type}: they differ by layer type, which this family does not know"
                )));
            }
        }
    }
    Reader { config, parameters: parameters.as_ref(), head_dim }.read(default_theta)
}

/// The rotary embedding of the layers of one type, if `rope_parameters` has one for each type.
///
/// # Errors
/// As [`rope_from_config`].
pub fn rope_of_layer_type(
    config: &Config,
    head_dim: usize,
    layer_type: &str,
    default_theta: f64,
) -> Result<Option<RopeSpec>> {
    let Some(all) = config.object("rope_parameters")? else { return Ok(None) };
    let Some(parameters) = all.object(layer_type)? else { return Ok(None) };
    Reader { config, parameters: Some(&parameters), head_dim }.read(default_theta).map(Some)
}

struct Reader<'a> {
    config: &'a Config,
    parameters: Option<&'a Config>,
    head_dim: usize,
}

impl Reader<'_> {
    fn read(&self, default_theta: f64) -> Result<RopeSpec> {
        let theta = self.anywhere("rope_theta")?.unwrap_or(default_theta);
        let share = self.anywhere("partial_rotary_factor")?.unwrap_or(1.0);
        if !(share > 0.0 && share <= 1.0) {
            return Err(Error::load(format!("partial_rotary_factor is {share}, but must be above 0 and at most 1")));
        }
        let scaling = match self.parameters {
            None => RopeScaling::Default,
            Some(parameters) => self.scaling(parameters)?,
        };
        checked(RopeSpec { theta, rotary_dim: (self.head_dim as f64 * share) as usize, scaling }, self.head_dim)
    }

    /// Among the parameters or, in older files, beside them.
    fn anywhere(&self, key: &str) -> Result<Option<f64>> {
        match self.parameters.map(|parameters| parameters.number(key)).transpose()?.flatten() {
            Some(number) => Ok(Some(number)),
            None => self.config.number(key),
        }
    }

    fn scaling(&self, parameters: &Config) -> Result<RopeScaling> {
        let kind = match parameters.text("rope_type")? {
            Some(kind) => kind,
            None => parameters.text("type")?.unwrap_or("default"),
        };
        let required = |key: &str| {
            parameters.number(key)?.ok_or_else(|| Error::load(format!("rope scaling of type {kind} lacks {key}")))
        };
        match kind {
            "default" => Ok(RopeScaling::Default),
            "linear" => Ok(RopeScaling::Linear { factor: required("factor")? }),
            "dynamic" => Ok(RopeScaling::Dynamic {
                factor: required("factor")?,
                original_context: self.config.required_size("max_position_embeddings")?,
            }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor: required("low_freq_factor")?,
                high_freq_factor: required("high_freq_factor")?,
                original_context: parameters.required_size("original_max_position_embeddings")?,
            }),
            "yarn" => self.yarn(parameters),
            // Phi-3's first name for it.
            "longrope" | "su" => self.longrope(parameters),
            other => Err(unsupported_kind(other)),
        }
    }

    fn yarn(&self, parameters: &Config) -> Result<RopeScaling> {
        let context = || self.config.required_size("max_position_embeddings");
        let original_context = match parameters.size("original_max_position_embeddings")? {
            Some(original) => original,
            None => context()?,
        };
        let factor = match parameters.number("factor")? {
            Some(factor) => factor,
            None => context()? as f64 / original_context as f64,
        };
        // A longer context spreads attention thinner; longer queries and keys make up for it.
        let magnitude = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
        let weight = |key: &str| Ok(parameters.number(key)?.filter(|&weight| weight != 0.0));
        let attention_factor =
            match (parameters.number("attention_factor")?, weight("mscale")?, weight("mscale_all_dim")?) {
                (Some(factor), ..) => factor,
                (None, Some(mscale), Some(all_dim)) => magnitude(mscale) / magnitude(all_dim),
                _ => magnitude(1.0),
            };
        Ok(RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast: parameters.number("beta_fast")?.unwrap_or(DEFAULT_BETAS[0]),
            beta_slow: parameters.number("beta_slow")?.unwrap_or(DEFAULT_BETAS[1]),
            truncate: parameters.flag("truncate")?.unwrap_or(true),
            attention_factor,
        })
    }

    fn longrope(&self, parameters: &Config) -> Result<RopeScaling> {
        let context = self.config.required_size("max_position_embeddings")?;
        // Beside the parameters, the original context decides about the stretch too.
        let (original_context, factor) = match self.config.size("original_max_position_embeddings")? {
            Some(original) => (original, None),
            None => {
                let original = parameters.size("original_max_position_embeddings")?;
                (original.unwrap_or(context), parameters.number("factor")?)
            }
        };
        let factor = factor.unwrap_or(context as f64 / original_context as f64);
        let attention_factor = match parameters.number("attention_factor")? {
            Some(factor) => factor,
            None => longrope_attention_factor(factor, original_context),
        };
        let factors = |key: &str| {
            let list = parameters.numbers(key)?;
            let list = list.ok_or_else(|| Error::load(format!("rope scaling of type longrope lacks {key}")))?;
            Ok::<_, Error>(list.into_iter().map(|factor| factor as f32).collect())
        };
        Ok(RopeScaling::LongRope {
            short: factors("short_factor")?,
            long: factors("long_factor")?,
            original_context,
            attention_factor,
        })
    }
}

/// How much longer queries and keys get where files do not say ("LongRoPE", 2024, as published with Phi-3).
pub fn longrope_attention_factor(factor: f64, original_context: usize) -> f64 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original_context as f64).ln()).sqrt() }
}

/// Checks the numbers of a rotary embedding for heads of `head_dim`.
///
/// # Errors
/// Names the number that is out of range.
pub fn checked(rope: RopeSpec, head_dim: usize) -> Result<RopeSpec> {
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
    let divisors = |name: &str, factors: &[f32]| {
        if factors.len() != rope.rotary_dim / 2 {
            let (count, needed) = (factors.len(), rope.rotary_dim / 2);
            return Err(Error::load(format!("{name} has {count} elements, but {needed} are needed")));
        }
        factors.iter().try_for_each(|factor| positive("divisor", f64::from(*factor)))
    };
    match &rope.scaling {
        RopeScaling::Default => {}
        RopeScaling::Linear { factor } => positive("factor", *factor)?,
        RopeScaling::Dynamic { factor, original_context } => {
            positive("factor", *factor)?;
            positive("original context", *original_context as f64)?;
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            positive("factor", *factor)?;
            positive("low_freq_factor", *low_freq_factor)?;
            positive("original context", *original_context as f64)?;
            // The ramp between them needs a width.
            positive("high_freq_factor minus low_freq_factor", high_freq_factor - low_freq_factor)?;
        }
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, .. } => {
            positive("factor", *factor)?;
            positive("original context", *original_context as f64)?;
            positive("beta_fast", *beta_fast)?;
            positive("beta_slow", *beta_slow)?;
            positive("attention_factor", *attention_factor)?;
            if rope.theta == 1.0 {
                return Err(Error::load("the rotary embedding's base is 1, with which YaRN is not defined"));
            }
        }
        RopeScaling::LongRope { short, long, original_context, attention_factor } => {
            divisors("short_factor", short)?;
            divisors("long_factor", long)?;
            positive("original context", *original_context as f64)?;
            positive("attention_factor", *attention_factor)?;
        }
        RopeScaling::Factors { factors } => divisors("rope_freqs.weight", factors)?,
    }
    Ok(rope)
}

/// The error for a kind of scaling that octavo does not know.
pub fn unsupported_kind(kind: &str) -> Error {
    Error::load(format!(
        "rope scaling of type {kind} is not supported; supported: default, linear, dynamic, llama3, yarn, longrope"
    ))
}
