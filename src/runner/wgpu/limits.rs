//! What the kernels and the adapter ask of a model, checked before anything is loaded.

use crate::config::{ContextChoice, EngineConfig};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::kernels::attention;
use crate::model::files::ModelFiles;
use crate::model::spec::ModelSpec;

/// Bytes that the weights take in the files, which is what they take on the device but for padding.
pub(super) fn weight_bytes(files: &ModelFiles) -> u64 {
    let bytes = files
        .tensors
        .infos()
        .map(|info| info.shape.iter().product::<usize>() / info.dtype.block_elements() * info.dtype.block_bytes());
    bytes.sum::<usize>() as u64
}

/// Shortens the context to what the attention kernel can walk on this adapter.
///
/// # Errors
/// The user asked for a longer one.
pub(super) fn limit_context(spec: &ModelSpec, config: &EngineConfig, gpu: &Gpu) -> Result<EngineConfig> {
    let limits = spec
        .layers
        .iter()
        .map(|layer| attention::Spec::new(&layer.attn, config.kv_dtype).longest_context(&gpu.profile));
    let longest = limits.min().unwrap_or(usize::MAX);
    if config.max_model_len <= longest {
        return Ok(config.clone());
    }
    match config.context {
        ContextChoice::Asked => Err(Error::config(format!(
            "max_model_len is {}, but attention on {} ends at {longest} tokens for this model; lower it to that",
            config.max_model_len, gpu.profile.name
        ))),
        ContextChoice::Model => {
            log::warn!("the context is limited to {longest} tokens on {}", gpu.profile.name);
            Ok(EngineConfig { max_model_len: longest, ..config.clone() })
        }
    }
}

/// What the kernels ask of a model's dimensions.
pub(super) fn check_shape(spec: &ModelSpec) -> Result<()> {
    for layer in &spec.layers {
        let head_dim = layer.attn.head_dim;
        let rotary_dim = layer.attn.rope.map_or(0, |rope| spec.ropes[rope].rotary_dim);
        if !head_dim.is_multiple_of(8) || head_dim > 512 || !rotary_dim.is_multiple_of(4) {
            return Err(Error::load(format!(
                "heads of {head_dim} elements, {rotary_dim} of them rotating, are not supported: octavo needs a \
                 multiple of 8 up to 512, and of 4"
            )));
        }
    }
    Ok(())
}
