//! Deliberate mistakes: each changes the logits by just as much as the recordings say that it changes those of the other
//! implementation. So the reference honours the setting, in the same way, and the recorded logits would notice its loss.

#[path = "common/golden.rs"]
mod golden;

use octavo::model::files::ModelFiles;
use octavo::model::spec::{LayerSpec, MlpKind, ModelSpec, RopeScaling};
use octavo::reference::{ReferenceOptions, ReferenceRunner};

fn logits(files: &ModelFiles, ids: &[u32]) -> Vec<f64> {
    let options =
        ReferenceOptions { block_count: 8, slot_count: 1, max_batched_tokens: 128, max_model_len: 128, max_steps: 1 };
    ReferenceRunner::new(files, options).unwrap().logits(ids).unwrap().concat()
}

fn layers(spec: &mut ModelSpec, change: impl Fn(&mut LayerSpec)) {
    spec.layers.iter_mut().for_each(change);
}

fn experts(spec: &mut ModelSpec, change: impl Fn(&mut usize, &mut bool)) {
    layers(spec, |layer| {
        if let MlpKind::Experts { chosen, normalize, .. } = &mut layer.mlp.kind {
            change(chosen, normalize);
        }
    });
}

type Mistake = (&'static str, &'static str, fn(&mut ModelSpec));

const MISTAKES: [Mistake; 27] = [
    ("tiny-llama", "rope_theta x2", |spec| spec.ropes[0].theta *= 2.0),
    ("tiny-llama", "rms_norm_eps 1e-2", set_eps),
    ("tiny-llama3-rope", "no rope_scaling", |spec| spec.ropes[0].scaling = RopeScaling::Default),
    ("tiny-llama3-rope", "factor 4", |spec| {
        if let RopeScaling::Llama3 { factor, .. } = &mut spec.ropes[0].scaling {
            *factor = 4.0;
        }
    }),
    ("tiny-qwen2", "sliding window on", |spec| layers(spec, |layer| layer.attn.window = Some(16))),
    ("tiny-qwen3", "rope_theta 1e4", |spec| spec.ropes[0].theta = 1e4),
    ("tiny-mistral", "no sliding window", |spec| layers(spec, |layer| layer.attn.window = None)),
    ("tiny-mistral", "window 23", |spec| layers(spec, |layer| layer.attn.window = Some(23))),
    ("tiny-mistral", "window 25", |spec| layers(spec, |layer| layer.attn.window = Some(25))),
    ("tiny-gpt2", "layer_norm_epsilon 1e-2", set_eps),
    ("tiny-gpt2", "positions ignored", |spec| spec.learned_positions = false),
    ("tiny-qwen3-moe", "norm_topk_prob off", |spec| experts(spec, |_, normalize| *normalize = false)),
    ("tiny-qwen3-moe", "top-1", |spec| experts(spec, |chosen, _| *chosen = 1)),
    ("tiny-qwen3-moe", "top-3", |spec| experts(spec, |chosen, _| *chosen = 3)),
    ("tiny-gemma2", "no attn softcap", |spec| layers(spec, |layer| layer.attn.softcap = None)),
    ("tiny-gemma2", "no final softcap", |spec| spec.final_softcap = None),
    ("tiny-gemma2", "scale by head_dim", |spec| layers(spec, |layer| layer.attn.scale = 0.25)),
    ("tiny-gemma2", "all layers full", |spec| layers(spec, |layer| layer.attn.window = None)),
    ("tiny-gemma3", "local theta 1e6", |spec| spec.ropes[1].theta = 1e6),
    ("tiny-gemma3", "no rope_scaling", |spec| spec.ropes[0].scaling = RopeScaling::Default),
    // There, layers that see everything also rotate as such.
    ("tiny-gemma3", "all layers full", |spec| {
        layers(spec, |layer| (layer.attn.window, layer.attn.rope) = (None, Some(0)));
    }),
    ("tiny-phi3", "full rotary", |spec| spec.ropes[0].rotary_dim = 32),
    ("tiny-olmo2", "rope_theta 1e4", |spec| spec.ropes[0].theta = 1e4),
    // Nothing is recorded for these; they must change something.
    ("tiny-gemma2", "", |spec| spec.embed_scale = 1.0),
    ("tiny-olmo2", "", |spec| layers(spec, |layer| layer.attn_post_norm = None)),
    ("tiny-qwen3", "", |spec| layers(spec, |layer| layer.attn.rope = None)),
    ("tiny-gemma3", "", |spec| layers(spec, |layer| layer.attn.rope = Some(0))),
];

fn set_eps(spec: &mut ModelSpec) {
    spec.final_norm.eps = 1e-2;
    layers(spec, |layer| {
        for norm in [&mut layer.attn_norm, &mut layer.mlp_norm].into_iter().flatten() {
            norm.eps = 1e-2;
        }
    });
}

#[test]
fn mistakes_change_the_logits_as_recorded() {
    for (model, mistake, change) in MISTAKES {
        let mut files = ModelFiles::open(&golden::path(model)).unwrap();
        let recorded = golden::json(&format!("{model}/golden.json"));
        let ids = recorded["prompts"].as_array().unwrap().iter().find(|prompt| prompt["name"] == "len100").unwrap();
        let ids = golden::ids(&ids["ids"]);
        let right = logits(&files, &ids);
        change(&mut files.spec);
        let wrong = logits(&files, &ids);
        let largest = right.iter().zip(&wrong).map(|(right, wrong)| (right - wrong).abs()).fold(0.0, f64::max);
        if mistake.is_empty() {
            assert!(largest > 0.1, "{model}: {largest}");
            continue;
        }
        let expected = recorded["mutations"][mistake]["max_abs_logit_change"].as_f64();
        let expected = expected.unwrap_or_else(|| panic!("{model} records no {mistake}"));
        println!("{model}, {mistake}: {largest:.4}, recorded {expected}");
        // Recorded with three digits, of f32 arithmetic.
        assert!(
            (largest - expected).abs() <= 0.005 * expected + 1e-3,
            "{model}, {mistake}: {largest} is not {expected}"
        );
    }
}
