//! What the kernels and the adapter ask of a model, checked before anything is loaded.

use crate::base::DType;
use crate::config::{ContextChoice, EngineConfig};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::kernels::attention;
use crate::kernels::experts::MOST_EXPERTS;
use crate::layout::SideLayout;
use crate::model::files::ModelFiles;
use crate::model::spec::{MlpKind, ModelSpec, NormKind};
use crate::weights::pack::device_bytes;

/// Bytes that the weights take on the device, but for padding; full precision counts as `quantize` if that is asked for.
pub(super) fn weight_bytes(files: &ModelFiles, quantize: Option<DType>) -> u64 {
    files.tensors.infos().map(|info| device_bytes(info, quantize)).sum()
}

/// Shortens the context to what the attention kernel can walk on this adapter, and to that of which the sampler can keep the tokens
/// of all slots in one binding.
///
/// # Errors
/// The user asked for a longer one, or there are too many slots for any.
pub(super) fn limit_context(spec: &ModelSpec, config: &EngineConfig, gpu: &Gpu) -> Result<EngineConfig> {
    let config = &limit_by_attention(spec, config, gpu)?;
    let profile = &gpu.profile;
    let region = SideLayout { max_context: 0, vocab_size: spec.vocab_size };
    let words = profile.max_binding.min(profile.max_buffer) as usize / 4;
    let fits = |slots: usize| (words / slots.max(1)).saturating_sub(region.stride());
    let (longest, slots) = (fits(config.max_num_seqs), config.max_num_seqs);
    if config.max_model_len <= longest {
        return Ok(config.clone());
    }
    // Of at least half of what was wanted: nobody is served by a context of a few tokens.
    if config.context == ContextChoice::Asked || longest < config.max_model_len / 2 {
        let fewer = (words / (region.stride() + config.max_model_len)).max(1);
        return Err(Error::config(format!(
            "max_num_seqs is {slots} with a context of {}, but the sampler keeps the tokens, lists and masks of all sequences in \
             one binding, and {} has room for {longest} tokens each; lower max_num_seqs to {fewer}, or max_model_len",
            config.max_model_len, profile.name
        )));
    }
    log::warn!("the context is limited to {longest} tokens, so that {slots} sequences fit into a binding");
    Ok(EngineConfig { max_model_len: longest, ..config.clone() })
}

fn limit_by_attention(spec: &ModelSpec, config: &EngineConfig, gpu: &Gpu) -> Result<EngineConfig> {
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

/// What the kernels ask of a model.
///
/// # Errors
/// Names what is not supported.
pub(super) fn check_shape(spec: &ModelSpec) -> Result<()> {
    let refuse = |index: usize, what: String| Err(Error::load(format!("layer {index} has {what}")));
    for (index, layer) in spec.layers.iter().enumerate() {
        let attn = &layer.attn;
        let head_dim = attn.head_dim;
        if !head_dim.is_multiple_of(8) || head_dim > 512 {
            return refuse(index, format!("heads of {head_dim} elements, but octavo needs a multiple of 8 up to 512"));
        }
        let rotary_dim = attn.rope.map_or(0, |rope| spec.ropes[rope].rotary_dim);
        if !rotary_dim.is_multiple_of(2) || rotary_dim > head_dim {
            return refuse(
                index,
                format!(
                    "{rotary_dim} rotating elements in heads of {head_dim}, but octavo needs an even number of them"
                ),
            );
        }
        if attn.window == Some(0) {
            return refuse(index, "an attention window of 0 tokens, but a token sees at least itself".into());
        }
        let norms = [layer.attn_post_norm, layer.mlp_post_norm, attn.qk_norm.map(|qk_norm| qk_norm.norm)];
        if norms.into_iter().flatten().any(|norm| norm.kind == NormKind::Layer) {
            return refuse(
                index,
                "a layer norm of heads or after a sublayer, but octavo supports only root-mean-square norms there"
                    .into(),
            );
        }
        if let MlpKind::Experts { count, chosen, .. } = layer.mlp.kind
            && !(1..=count.min(MOST_EXPERTS)).contains(&chosen)
        {
            return refuse(index, format!("{chosen} chosen of {count} experts"));
        }
        if let MlpKind::Experts { count, .. } = layer.mlp.kind
            && count > MOST_EXPERTS
        {
            return refuse(index, format!("{count} experts, but octavo supports at most {MOST_EXPERTS}"));
        }
    }
    Ok(())
}

/// The most past tokens that any layer sees, if no layer sees a whole context of `max_model_len`.
pub(super) fn widest_window(spec: &ModelSpec, max_model_len: usize) -> Option<u32> {
    let windows = spec.layers.iter().map(|layer| layer.attn.window.filter(|window| *window < max_model_len));
    windows.collect::<Option<Vec<_>>>()?.into_iter().max().map(|window| window as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineOptions;
    use crate::gpu::{DeviceKind, Profile};
    use crate::model::spec::{AttnSpec, LayerSpec, MlpSpec, NormSpec};

    fn spec(windows: &[Option<usize>]) -> ModelSpec {
        let norm = NormSpec::rms(1e-6);
        let layer = |&window: &Option<usize>| {
            let attn = AttnSpec { window, ..AttnSpec::plain(4, 2, 16) };
            LayerSpec::pre_norm(norm, attn, MlpSpec::silu_gated(64))
        };
        ModelSpec {
            family: "test",
            vocab_size: 32,
            hidden_size: 64,
            max_position_embeddings: 512,
            embed_scale: 1.0,
            learned_positions: false,
            layers: windows.iter().map(layer).collect(),
            final_norm: norm,
            tied_head: true,
            final_softcap: None,
            ropes: Vec::new(),
        }
    }

    #[test]
    fn memory_slides_only_if_every_layer_does() {
        assert_eq!(widest_window(&spec(&[Some(24), Some(64)]), 512), Some(64));
        assert_eq!(widest_window(&spec(&[Some(24), None]), 512), None);
        // A window of the whole context is none.
        assert_eq!(widest_window(&spec(&[Some(24), Some(512)]), 512), None);
    }

    #[test]
    fn sequences_share_the_memory_of_the_sampler() {
        let gpu = Gpu::noop(Profile::baseline(DeviceKind::Discrete));
        let model = ModelSpec { max_position_embeddings: 100_000, ..spec(&[None]) };
        let config = |max_num_seqs, max_model_len| {
            let options =
                EngineOptions { max_num_seqs, max_model_len, max_num_batched_tokens: 8192, ..EngineOptions::default() };
            limit_context(&model, &EngineConfig::new(options, &model).unwrap(), &gpu)
        };
        // 128 MiB hold 2^25 words; a slot takes 4,097 and its context.
        assert_eq!(config(64, Some(100_000)).unwrap().max_model_len, 100_000);
        assert_eq!(config(400, None).unwrap().max_model_len, (1 << 25) / 400 - 4097);
        let message = config(400, Some(100_000)).unwrap_err().to_string();
        assert!(message.contains("max_num_seqs is 400") && message.contains("lower max_num_seqs to 322"), "{message}");
        let message = config(8000, None).unwrap_err().to_string();
        assert!(message.contains("room for 97 tokens each"), "{message}");
    }

    #[test]
    fn what_kernels_cannot_do_is_named() {
        assert!(check_shape(&spec(&[Some(24), None])).is_ok());
        let message = |change: fn(&mut LayerSpec)| {
            let mut spec = spec(&[None, None]);
            change(&mut spec.layers[1]);
            check_shape(&spec).unwrap_err().to_string()
        };
        assert!(message(|layer| layer.attn.head_dim = 12).contains("layer 1 has heads of 12 elements"));
        assert!(message(|layer| layer.attn.window = Some(0)).contains("window of 0"));
        let layer_norm = |layer: &mut LayerSpec| {
            layer.mlp_post_norm = Some(NormSpec { kind: NormKind::Layer, eps: 0.0 });
        };
        assert!(message(layer_norm).contains("layer norm"));
        let experts = |count, chosen| MlpKind::Experts { count, chosen, normalize: true };
        for (kind, named) in
            [(experts(8, 9), "9 chosen of 8"), (experts(600, 8), "600 experts"), (experts(8, 0), "0 chosen")]
        {
            let mut spec = spec(&[None]);
            spec.layers[0].mlp.kind = kind;
            let message = check_shape(&spec).unwrap_err().to_string();
            assert!(message.contains(named), "{message}");
        }
    }
}
