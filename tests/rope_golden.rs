//! Rotary frequencies and tables against golden data, read through the configuration spelling of `config.json`.

use octavo::model::Config;
use octavo::model::arch::rope_from_config;
use octavo::model::rope::{attention_factor, cos_sin_row, cos_sin_table, inverse_frequencies};
use safetensors::SafeTensors;
use serde_json::Value;

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/golden/rope/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f64> {
    let words = file.tensor(name).unwrap().data().chunks_exact(4);
    words.map(|word| f64::from(f32::from_le_bytes(word.try_into().unwrap()))).collect()
}

#[test]
fn frequencies_and_tables_agree_with_golden_data() {
    let bytes = golden("rope.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let json: Value = serde_json::from_slice(&golden("rope.json")).unwrap();
    let positions: Vec<usize> =
        json["positions"].as_array().unwrap().iter().map(|position| position.as_u64().unwrap() as usize).collect();
    let mut compared = 0;
    for case in json["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let head_dim = case["head_dim"].as_u64().unwrap() as usize;
        let config = Config::parse(case.to_string().as_bytes()).unwrap();
        let spec = rope_from_config(&config, head_dim).unwrap_or_else(|error| panic!("{name}: {error}"));
        // The recorded length of the context; where there is none, it does not matter.
        let context = case["seq_len"].as_u64().map_or(1, |length| length as usize);
        let frequencies = inverse_frequencies(&spec, context);
        let expected = floats(&tensors, &format!("{name}.inv_freq"));
        assert_eq!(frequencies.len(), expected.len(), "{name}");
        for (index, (got, want)) in frequencies.iter().zip(&expected).enumerate() {
            assert!((got - want).abs() <= 1e-6 * want, "{name} frequency {index}: {got} is not {want}");
        }
        let factor = attention_factor(&spec.scaling);
        let recorded = case["attention_factor"].as_f64().unwrap();
        assert!((factor - recorded).abs() <= 1e-6 * recorded, "{name}: {factor} is not {recorded}");
        let half = expected.len();
        let (cos, sin) = (floats(&tensors, &format!("{name}.cos")), floats(&tensors, &format!("{name}.sin")));
        for (row, &position) in positions.iter().enumerate() {
            for (index, [got_cos, got_sin]) in cos_sin_row(&frequencies, factor, position).enumerate() {
                let tolerance = 1e-6 * (position as f64 * frequencies[index]).max(1.0);
                let (want_cos, want_sin) = (cos[row * half + index], sin[row * half + index]);
                let error = (f64::from(got_cos) - want_cos).abs().max((f64::from(got_sin) - want_sin).abs());
                assert!(error <= tolerance, "{name} position {position} pair {index}: off by {error}");
            }
        }
        compared += 1;
    }
    assert_eq!(compared, 15);
}

#[test]
fn the_engines_longest_sequence_is_the_context_of_a_table() {
    let long = r#"{"rope_scaling": {"type": "dynamic", "factor": 2}, "max_position_embeddings": 8}"#;
    let spec = rope_from_config(&Config::parse(long.as_bytes()).unwrap(), 4).unwrap();
    for positions in [8, 12] {
        let frequencies = inverse_frequencies(&spec, positions);
        let rows: Vec<[f32; 2]> =
            (0..positions).flat_map(|position| cos_sin_row(&frequencies, 1.0, position)).collect();
        assert_eq!(cos_sin_table(&spec, positions), rows);
    }
    assert_ne!(cos_sin_table(&spec, 8), cos_sin_table(&spec, 12)[..16]);
}

#[test]
fn both_spellings_mean_the_same() {
    let old = r#"{"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4}}"#;
    let new = r#"{"rope_theta": 1.0, "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4}}"#;
    let [old, new] = [old, new].map(|text| rope_from_config(&Config::parse(text.as_bytes()).unwrap(), 64).unwrap());
    assert_eq!(old, new);
    assert_eq!(old.theta, 5e5);
}

#[test]
fn impossible_parameters_are_refused_by_name() {
    let cases = [
        (r#"{"rope_theta": 0}"#, "base"),
        (r#"{"rope_theta": "big"}"#, "rope_theta"),
        (r#"{"partial_rotary_factor": 1.5}"#, "partial_rotary_factor"),
        (r#"{"partial_rotary_factor": 0.05}"#, "even number"),
        (r#"{"rope_scaling": {"type": "linear"}}"#, "lacks factor"),
        (r#"{"rope_scaling": {"type": "linear", "factor": -2}}"#, "factor is -2"),
        (
            r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 1,
            "original_max_position_embeddings": 64}}"#,
            "high_freq_factor minus low_freq_factor",
        ),
        (
            r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}}"#,
            "original_max_position_embeddings",
        ),
        (r#"{"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}"#, "layer type"),
        (r#"{"rope_scaling": {"type": "ntk-by-parts", "factor": 2}}"#, "ntk-by-parts"),
        (r#"{"rope_scaling": {"type": "dynamic", "factor": 2}}"#, "max_position_embeddings is missing"),
        (r#"{"rope_scaling": {"type": "yarn", "factor": 0, "original_max_position_embeddings": 64}}"#, "factor is 0"),
        (
            r#"{"rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 64, "beta_slow": -1}}"#,
            "beta_slow is -1",
        ),
        (
            r#"{"rope_scaling": {"rope_type": "longrope", "short_factor": [1]}, "max_position_embeddings": 64}"#,
            "long_factor",
        ),
        (
            r#"{"rope_scaling": {"rope_type": "su", "short_factor": [1], "long_factor": [1]}, "max_position_embeddings": 64}"#,
            "short_factor has 1 elements, but 10 are needed",
        ),
    ];
    for (text, word) in cases {
        let config = Config::parse(text.as_bytes()).unwrap();
        let message = rope_from_config(&config, 20).unwrap_err().to_string();
        assert!(message.contains(word), "{text}: {message}");
    }
}
