//! A model's description in words, for people: what its layers have in common, and what differs between them.

use octavo::model::spec::{Activation, AttnSpec, LayerSpec, MlpKind, ModelSpec, NormKind, RopeScaling, RopeSpec};

/// Heads, windows, norms of queries and keys, biases and caps.
pub fn attention(spec: &ModelSpec) -> String {
    let attn = |layer: &LayerSpec| layer.attn.clone();
    let mut parts = vec![across(spec, |layer| {
        let AttnSpec { heads, kv_heads, head_dim, .. } = attn(layer);
        Some(format!("{heads} heads of {head_dim} ({kv_heads} for keys and values)"))
    })];
    parts.push(across(spec, |layer| attn(layer).window.map(|window| format!("window of {window} tokens"))));
    parts.push(across(spec, |layer| {
        let norm = attn(layer).qk_norm?;
        Some(if norm.whole_row { "queries and keys normed" } else { "query and key heads normed" }.into())
    }));
    parts.push(across(spec, |layer| match (layer.attn.qkv_bias, layer.attn.output_bias) {
        (false, false) => None,
        (true, false) => Some("biases on queries, keys and values".into()),
        (false, true) => Some("bias on the output".into()),
        (true, true) => Some("biases".into()),
    }));
    parts.push(across(spec, |layer| attn(layer).softcap.map(|cap| format!("scores capped at {cap}"))));
    joined(parts)
}

/// Shape, activation and experts.
pub fn mlp(spec: &ModelSpec) -> String {
    across(spec, |layer| {
        let width = layer.mlp.intermediate_size;
        let activation = match layer.mlp.activation {
            Activation::Silu => "SiLU",
            Activation::GeluTanh => "GELU",
        };
        Some(match layer.mlp.kind {
            MlpKind::Gated => format!("{width} wide, {activation} gate"),
            MlpKind::Plain => format!("{width} wide, {activation}"),
            MlpKind::Experts { count, chosen, .. } => {
                format!("{count} experts {width} wide, {activation} gate, {chosen} for each token")
            }
        })
    })
}

/// What kind of norm stands where.
pub fn norms(spec: &ModelSpec) -> String {
    let kind = match spec.final_norm.kind {
        NormKind::Rms => "root mean square",
        NormKind::Layer => "layer norm",
    };
    let places = across(spec, |layer| {
        Some(match (layer.attn_norm.is_some(), layer.attn_post_norm.is_some()) {
            (true, true) => "before and after attention and MLP".into(),
            (false, true) => "after attention and MLP".into(),
            _ => "before attention and MLP".to_owned(),
        })
    });
    format!("{kind}, {places}")
}

/// Each way in which positions are marked.
pub fn positions(spec: &ModelSpec) -> Vec<String> {
    let mut list: Vec<String> = Vec::new();
    if spec.learned_positions {
        list.push("learned".into());
    }
    for (index, rope) in spec.ropes.iter().enumerate() {
        let users = spec.layers.iter().filter(|layer| layer.attn.rope == Some(index)).count();
        let head_dim = spec.layers.first().map_or(0, |layer| layer.attn.head_dim);
        list.push(format!("{}{}", rotation(rope, head_dim), share(users, spec.layers.len())));
    }
    let unmarked = spec.layers.iter().filter(|layer| layer.attn.rope.is_none()).count();
    if unmarked > 0 && !spec.learned_positions {
        list.push(format!("none{}", share(unmarked, spec.layers.len())));
    }
    list
}

/// What is done to embedded tokens and to logits, if anything.
pub fn ends(spec: &ModelSpec) -> Option<String> {
    let scale = (spec.embed_scale != 1.0).then(|| format!("embeddings times {}", spec.embed_scale));
    let cap = spec.final_softcap.map(|cap| format!("logits capped at {cap}"));
    let parts: Vec<String> = scale.into_iter().chain(cap).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Weights that no token reads, because it has other experts.
pub fn idle_parameters(spec: &ModelSpec) -> u64 {
    let idle = |layer: &LayerSpec| match layer.mlp.kind {
        MlpKind::Experts { count, chosen, .. } => 3 * (layer.mlp.intermediate_size * (count - chosen)) as u64,
        MlpKind::Gated | MlpKind::Plain => 0,
    };
    spec.layers.iter().map(idle).sum::<u64>() * spec.hidden_size as u64
}

fn rotation(rope: &RopeSpec, head_dim: usize) -> String {
    let scaling = match &rope.scaling {
        RopeScaling::Default => String::new(),
        RopeScaling::Linear { factor } => format!(", linear x{factor}"),
        RopeScaling::Dynamic { factor, original_context } => format!(", dynamic x{factor} of {original_context}"),
        RopeScaling::Llama3 { factor, original_context, .. } => format!(", llama3 x{factor} of {original_context}"),
        RopeScaling::Yarn { factor, original_context, .. } => format!(", yarn x{factor} of {original_context}"),
        RopeScaling::LongRope { original_context, .. } => format!(", longrope beyond {original_context}"),
        RopeScaling::Factors { .. } => ", a divisor for each frequency".into(),
    };
    format!("theta {}, {} of {head_dim} dimensions{scaling}", rope.theta, rope.rotary_dim)
}

/// What `what` says of the layers: once if they agree, else each answer with the number of its layers. Layers of which it
/// says nothing are left out.
fn across(spec: &ModelSpec, what: impl Fn(&LayerSpec) -> Option<String>) -> String {
    let mut answers: Vec<(String, usize)> = Vec::new();
    for answer in spec.layers.iter().filter_map(what) {
        match answers.iter_mut().find(|(known, _)| *known == answer) {
            Some((_, count)) => *count += 1,
            None => answers.push((answer, 1)),
        }
    }
    let all = spec.layers.len();
    let parts: Vec<String> =
        answers.into_iter().map(|(answer, count)| format!("{answer}{}", share(count, all))).collect();
    parts.join("; ")
}

fn share(count: usize, all: usize) -> String {
    if count == all { String::new() } else { format!(" in {count} of {all} layers") }
}

fn joined(parts: Vec<String>) -> String {
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(", ")
}
