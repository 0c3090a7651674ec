//! Which layers slide: see only the latest tokens.

use super::super::config::Config;
use super::super::spec::ModelSpec;
use crate::error::{Error, Result};

/// The width of `sliding_window`; 0 is some makers' way to say "none".
///
/// # Errors
/// It is not a whole number.
pub fn sliding_window(config: &Config) -> Result<Option<usize>> {
    Ok(config.size("sliding_window")?.filter(|&window| window > 0))
}

/// For each layer whether it slides: as `layer_types` says, or else by `usual`.
///
/// # Errors
/// `layer_types` has another length, or names a kind that is neither full nor sliding attention.
pub fn sliding_layers(config: &Config, layer_count: usize, usual: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
    let kinds = config.texts("layer_types")?;
    if kinds.is_empty() {
        return Ok((0..layer_count).map(usual).collect());
    }
    if kinds.len() != layer_count {
        return Err(Error::load(format!("layer_types has {} entries for {layer_count} layers", kinds.len())));
    }
    let slides = |kind: &&str| match *kind {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        other => Err(Error::load(format!(
            "layer_types names {other}, which is not supported; supported: full_attention, sliding_attention"
        ))),
    };
    kinds.iter().map(slides).collect()
}

/// Sets the window of the layers that slide.
///
/// # Errors
/// Some slide, but there is no window.
pub fn apply(spec: &mut ModelSpec, slides: &[bool], window: Option<usize>) -> Result<()> {
    for (layer, &slides) in spec.layers.iter_mut().zip(slides) {
        if slides && window.is_none() {
            return Err(Error::load("layer_types has sliding layers, but sliding_window is missing"));
        }
        layer.attn.window = window.filter(|_| slides);
    }
    Ok(())
}

/// The rule of the Qwen classes: with `use_sliding_window`, layers from `max_window_layers` on slide.
///
/// # Errors
/// As [`sliding_layers`] and [`apply`].
pub fn apply_qwen(config: &Config, spec: &mut ModelSpec) -> Result<()> {
    // Without the flag, files carry the numbers of a window that is not in use.
    let window = match config.flag("use_sliding_window")? {
        Some(true) => sliding_window(config)?,
        _ => None,
    };
    let first = config.size("max_window_layers")?.unwrap_or(DEFAULT_MAX_WINDOW_LAYERS);
    let slides = sliding_layers(config, spec.layers.len(), |layer| window.is_some() && layer >= first)?;
    apply(spec, &slides, window)
}

/// `max_window_layers` of configurations that do not say, as in transformers.
const DEFAULT_MAX_WINDOW_LAYERS: usize = 28;
