//! Settings in which families differ, as their configurations say them or leave them out: windows, caps, rotary
//! embeddings, experts, scales.

mod tiny_files;

use octavo::model::Config;
use octavo::model::arch;
use octavo::model::spec::{Activation, MlpKind, ModelSpec, RopeScaling};
use octavo::weights::FileBytes;
use octavo::weights::safetensors::SafetensorsFiles;
use serde_json::{Value as Json, json};
use tiny_files::{golden, safetensors, tiny_config, tiny_tensors};

/// What the configuration says of a model, before its tensors are looked for. `changes` of null remove a key; to write a
/// null, say "null".
fn spec(base: &Json, class: &str, changes: &Json) -> ModelSpec {
    let mut config = base.clone();
    config["architectures"] = json!([class]);
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Json::Null => drop(config.as_object_mut().unwrap().remove(key)),
            value if value == "null" => config[key] = Json::Null,
            value => config[key] = value.clone(),
        }
    }
    let config = Config::parse(config.to_string().as_bytes()).unwrap();
    let file = ("model.safetensors".to_owned(), FileBytes::Owned(safetensors(&tiny_tensors())));
    let files = SafetensorsFiles::new(vec![file], None).unwrap();
    let arch = arch::from_config(&config).unwrap();
    arch.spec_from_config(&config, &files).unwrap_or_else(|error| panic!("{class} {changes}: {error}"))
}

fn windows(spec: &ModelSpec) -> Vec<Option<usize>> {
    spec.layers.iter().map(|layer| layer.attn.window).collect()
}

/// The tiny configuration with so many layers.
fn layers(count: usize) -> Json {
    let mut config = tiny_config();
    config["num_hidden_layers"] = json!(count);
    config
}

fn golden_config(model: &str) -> Json {
    serde_json::from_slice(&std::fs::read(golden(model).join("config.json")).unwrap()).unwrap()
}

#[test]
fn windows_follow_the_rules_of_their_family() {
    let (no, yes) = (None, Some(16));
    let window = json!({"sliding_window": 16});
    for (class, changes, expected) in [
        ("MistralForCausalLM", window.clone(), [yes; 4]),
        ("MistralForCausalLM", json!({"sliding_window": "null"}), [no; 4]),
        ("MistralForCausalLM", json!({}), [Some(4096); 4]),
        ("Phi3ForCausalLM", window.clone(), [yes; 4]),
        // The numbers of a window that is not in use.
        ("LlamaForCausalLM", window.clone(), [no; 4]),
        ("Qwen2ForCausalLM", window.clone(), [no; 4]),
        (
            "Qwen2ForCausalLM",
            json!({"sliding_window": 16, "max_window_layers": 1, "use_sliding_window": false}),
            [no; 4],
        ),
        ("Qwen2ForCausalLM", json!({"sliding_window": 16, "use_sliding_window": true}), [no; 4]),
        (
            "Qwen2ForCausalLM",
            json!({"sliding_window": 16, "max_window_layers": 3, "use_sliding_window": true}),
            [no, no, no, yes],
        ),
        (
            "Qwen3ForCausalLM",
            json!({"sliding_window": 16, "max_window_layers": 0, "use_sliding_window": true,
                "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]}),
            [no, yes, no, yes],
        ),
        (
            "SmolLM3ForCausalLM",
            json!({"sliding_window": 16, "use_sliding_window": true, "no_rope_layers": [1, 0, 1, 0]}),
            [no, yes, no, yes],
        ),
        ("Gemma2ForCausalLM", json!({"hidden_act": null, "sliding_window": 16}), [yes, no, yes, no]),
        ("Gemma2ForCausalLM", json!({"hidden_act": null}), [Some(4096), no, Some(4096), no]),
        (
            "Gemma3ForCausalLM",
            json!({"hidden_act": null, "sliding_window": 16, "sliding_window_pattern": 2}),
            [yes, no, yes, no],
        ),
        ("Gemma3ForCausalLM", json!({"hidden_act": null}), [Some(4096); 4]),
    ] {
        assert_eq!(windows(&spec(&layers(4), class, &changes)), expected, "{class} {changes}");
    }
}

#[test]
fn gemma_caps_and_scales_have_defaults_that_null_switches_off() {
    let silent = json!({"hidden_act": null});
    let gemma2 = spec(&layers(2), "Gemma2ForCausalLM", &silent);
    assert_eq!((gemma2.layers[0].attn.softcap, gemma2.final_softcap), (Some(50.0), Some(30.0)));
    assert_eq!(gemma2.layers[0].attn.scale, 1.0 / 16.0);
    assert_eq!(gemma2.layers[0].mlp.activation, Activation::GeluTanh);
    assert_eq!(gemma2.embed_scale, 32f32.sqrt());
    let off = json!({"hidden_act": null, "attn_logit_softcapping": "null", "final_logit_softcapping": "null",
        "sliding_window": "null", "layer_types": ["full_attention", "full_attention"], "query_pre_attn_scalar": 4});
    let gemma2 = spec(&layers(2), "Gemma2ForCausalLM", &off);
    assert_eq!((gemma2.layers[0].attn.softcap, gemma2.final_softcap), (None, None));
    assert_eq!(gemma2.layers[0].attn.scale, 0.5);
    let silent = json!({"hidden_act": null, "rope_theta": null});
    let gemma3 = spec(&layers(2), "Gemma3ForCausalLM", &silent);
    assert_eq!((gemma3.layers[0].attn.softcap, gemma3.final_softcap), (None, None));
    assert_eq!(gemma3.ropes.iter().map(|rope| rope.theta).collect::<Vec<_>>(), [1e6, 1e4]);
}

#[test]
fn gemma3_reads_its_two_rotations_in_both_spellings() {
    let old = golden_config("tiny-gemma3");
    let newer = json!({
        "rope_theta": null, "rope_scaling": null, "rope_local_base_freq": null,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    });
    let spec = |changes: &Json| spec(&old, "Gemma3ForCausalLM", changes);
    let expected = spec(&json!({}));
    assert_eq!(expected.ropes[0].scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(expected.ropes[1].scaling, RopeScaling::Default);
    assert_eq!(
        expected.layers.iter().map(|layer| layer.attn.rope).collect::<Vec<_>>(),
        [Some(1), Some(1), Some(0), Some(1)]
    );
    assert_eq!(spec(&newer), expected);
    let mut other = newer;
    other["rope_parameters"]["sliding_attention"]["rope_theta"] = json!(2e4);
    assert_eq!(spec(&other).ropes[1].theta, 2e4);
}

#[test]
fn phi3_reads_longrope_and_its_part_of_each_head() {
    let factors = |value: f64| vec![value; 12];
    let changes = json!({
        "max_position_embeddings": 4096, "original_max_position_embeddings": 512,
        "rope_scaling": {"type": "su", "short_factor": factors(1.5), "long_factor": factors(4.0)},
    });
    let rope = &spec(&golden_config("tiny-phi3"), "Phi3ForCausalLM", &changes).ropes[0];
    assert_eq!(rope.rotary_dim, 24);
    let RopeScaling::LongRope { short, long, original_context, attention_factor } = &rope.scaling else {
        panic!("{rope:?}");
    };
    assert_eq!((short, long, *original_context), (&vec![1.5; 12], &vec![4.0; 12], 512));
    // 8 times the length: sqrt(1 + ln 8 / ln 512) = sqrt(1 + 1 / 3).
    assert!((attention_factor - (4f64 / 3.0).sqrt()).abs() < 1e-12);
}

#[test]
fn scalings_that_are_added_to_a_model_lengthen_its_context() {
    let context = |scaling: Json| {
        let spec = spec(&tiny_config(), "LlamaForCausalLM", &json!({"rope_scaling": scaling}));
        spec.max_position_embeddings
    };
    assert_eq!(context(json!({"type": "dynamic", "factor": 4.0})), 256);
    assert_eq!(context(json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32})), 128);
    assert_eq!(context(json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16})), 64);
    // Files of these state the stretched context.
    assert_eq!(context(json!({"type": "linear", "factor": 4.0})), 64);
}

#[test]
fn experts_stand_in_the_layers_that_the_configuration_names() {
    let mixture = |changes: Json| {
        let mut all = json!({"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let spec = spec(&layers(4), "Qwen3MoeForCausalLM", &all);
        let kinds = spec.layers.iter().map(|layer| match layer.mlp.kind {
            MlpKind::Experts { count, chosen, normalize } => {
                assert_eq!((count, chosen, normalize, layer.mlp.intermediate_size), (8, 2, false, 32));
                true
            }
            kind => {
                assert_eq!((kind, layer.mlp.intermediate_size), (MlpKind::Gated, 64));
                false
            }
        });
        kinds.collect::<Vec<bool>>()
    };
    assert_eq!(mixture(json!({})), [true; 4]);
    assert_eq!(mixture(json!({"mlp_only_layers": [0, 3]})), [false, true, true, false]);
    assert_eq!(mixture(json!({"decoder_sparse_step": 2})), [false, true, false, true]);
}

#[test]
fn gpt2_scales_attention_as_told() {
    let scales = |changes: Json| {
        let spec = spec(&golden_config("tiny-gpt2"), "GPT2LMHeadModel", &changes);
        spec.layers.iter().map(|layer| layer.attn.scale).collect::<Vec<_>>()
    };
    assert_eq!(scales(json!({})), [0.25; 3]);
    assert_eq!(scales(json!({"scale_attn_weights": false})), [1.0; 3]);
    assert_eq!(scales(json!({"scale_attn_by_inverse_layer_idx": true})), [0.25, 0.125, 0.25 / 3.0]);
}
