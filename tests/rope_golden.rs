//! Rotary frequencies and tables against golden data, read through the configuration spelling of `config.json`.

use octavo::model::Config;
use octavo::model::arch::rope_from_config;
use octavo::model::rope::{cos_sin_table, inverse_frequencies};
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
    let (mut compared, mut refused) = (Vec::new(), Vec::new());
    for case in json["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let head_dim = case["head_dim"].as_u64().unwrap() as usize;
        let config = Config::parse(case.to_string().as_bytes()).unwrap();
        let spec = match rope_from_config(&config, head_dim) {
            Ok(spec) => spec,
            Err(error) => {
                let kind = case["rope_scaling"]["rope_type"].as_str().unwrap();
                assert!(error.to_string().contains(kind), "{name}: {error}");
                refused.push(name.split('-').next().unwrap().to_owned());
                continue;
            }
        };
        compared.push(name);
        let frequencies = inverse_frequencies(&spec);
        let expected = floats(&tensors, &format!("{name}.inv_freq"));
        assert_eq!(frequencies.len(), expected.len(), "{name}");
        for (index, (got, want)) in frequencies.iter().zip(&expected).enumerate() {
            assert!((got - want).abs() <= 1e-6 * want, "{name} frequency {index}: {got} is not {want}");
        }
        let half = expected.len();
        let (cos, sin) = (floats(&tensors, &format!("{name}.cos")), floats(&tensors, &format!("{name}.sin")));
        // The longest positions need a table of a hundred megabytes; the frequencies cover them.
        let longest = 10_000;
        let table = cos_sin_table(&spec, longest);
        for (row, &position) in positions.iter().enumerate().filter(|(_, position)| **position < longest) {
            for index in 0..half {
                let [got_cos, got_sin] = table[position * half + index].map(f64::from);
                let tolerance = 1e-6 * (position as f64 * frequencies[index]).max(1.0);
                let (want_cos, want_sin) = (cos[row * half + index], sin[row * half + index]);
                let error = (got_cos - want_cos).abs().max((got_sin - want_sin).abs());
                assert!(error <= tolerance, "{name} position {position} pair {index}: off by {error}");
            }
        }
    }
    assert_eq!(compared, ["default-1e4", "default-1e6", "partial-0.5", "linear-x8", "llama3-x8", "llama3-x32"]);
    refused.dedup();
    assert_eq!(refused, ["dynamic", "yarn", "longrope"]);
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
    ];
    for (text, word) in cases {
        let config = Config::parse(text.as_bytes()).unwrap();
        let message = rope_from_config(&config, 20).unwrap_err().to_string();
        assert!(message.contains(word), "{text}: {message}");
    }
}
