//! `octavo bench` on a tiny model: every bench runs, says what it measured, and refuses what makes no sense. Times are looked
//! at only for being there.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_octavo")).arg("bench").args(args).env("OCTAVO_CACHE_DIR", "").output().unwrap()
}

fn model() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny-llama").to_str().unwrap().to_owned()
}

/// The JSON line of a bench of the tiny model.
fn line(args: &[&str]) -> Value {
    let model = model();
    let output = bench(&[args, &["--model", &model, "--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(line: &Value, path: &str) -> f64 {
    line.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {line}"))
}

#[test]
fn speeds_come_with_their_conditions_and_counts() {
    let small = ["--tokens", "6", "--prompt-tokens", "9", "--repeats", "2"];
    let decode = line(&[&["decode", "--profile"][..], &small].concat());
    assert_eq!((decode["bench"].as_str(), number(&decode, "/sequences")), (Some("decode"), 1.0));
    // A prompt, and five tokens after the first.
    let (steps, per_step) = (number(&decode, "/dispatches"), number(&decode, "/dispatches_per_step"));
    assert!(steps >= 5.0 * per_step && steps <= 7.0 * per_step + 2.0, "{decode}");
    assert_eq!(number(&decode, "/device_objects_created"), 0.0);
    assert!(number(&decode, "/slowest_tokens_per_second") <= number(&decode, "/tokens_per_second"));
    let kernels = decode["profile"]["kernels"].as_array().unwrap();
    let sum: f64 = kernels.iter().map(|kernel| number(kernel, "/ms")).sum();
    let whole = number(&decode, "/profile/step_ms");
    assert!((sum + number(&decode, "/profile/unexplained_ms") - whole).abs() < 1e-6 * whole, "{decode}");
    let batch = line(&[&["batch", "--sequences", "3"][..], &small].concat());
    assert_eq!((batch["bench"].as_str(), number(&batch, "/sequences")), (Some("batch"), 3.0));
    let prefill = line(&[&["prefill"][..], &small].concat());
    assert_eq!((prefill["bench"].as_str(), number(&prefill, "/tokens")), (Some("prefill"), 1.0));
    for line in [&decode, &batch, &prefill] {
        assert!(number(line, "/device_ms") > 0.0 && number(line, "/encode_ms") > 0.0 && line["adapter"].is_string());
    }
}

#[test]
fn kernels_contexts_prefixes_and_encoding_are_measured() {
    let kernels = line(&["kernels", "--rows", "1,20", "--context", "30", "--repeats", "1"]);
    let shapes = line(&["kernels", "--variants", "--rows", "1", "--repeats", "1"]);
    let products = shapes["kernels"].as_array().unwrap().iter().filter(|line| line["kernel"] == "qkv");
    assert!(products.count() > 1, "{shapes}");
    assert!(number(&kernels, "/peak/gflops") > 0.0 && number(&kernels, "/peak/read_gbytes") > 0.0);
    let rows: Vec<f64> = kernels["kernels"].as_array().unwrap().iter().map(|line| number(line, "/rows")).collect();
    assert!(rows.contains(&1.0) && rows.contains(&20.0));
    let lengths = |most: &str| -> Vec<f64> {
        let context = line(&["context", "--most", most, "--repeats", "1"]);
        context["steps"].as_array().unwrap().iter().map(|step| number(step, "/context")).collect()
    };
    assert_eq!(lengths("300"), [128.0, 256.0, 300.0]);
    // The model ends at 512, less the room for the steps that are measured.
    assert_eq!(lengths("8192"), [128.0, 256.0, 464.0]);
    let prefix = line(&["prefix", "--shared", "48", "--own", "2,5", "--repeats", "1"]);
    assert_eq!(prefix["ttft"].as_array().unwrap().len(), 2);
    let start = line(&["start", "--repeats", "1"]);
    let stages = start["stages"].as_array().unwrap();
    let (sum, parts) = stages.split_last().unwrap();
    let parts: f64 = parts.iter().map(|stage| number(stage, "/ms")).sum();
    assert!((number(sum, "/ms") - parts).abs() < 1e-6 * parts && parts > 0.0, "{start}");
    let encode = line(&["encode", "--repeats", "2", "--noop"]);
    assert!(number(&encode, "/backends/0/encode_micros_per_dispatch") > 0.0);
    assert_eq!(encode["backends"][0]["host_micros_per_step"].as_array().unwrap().len(), 2);
}

#[test]
fn senseless_benches_are_refused_with_their_values() {
    let model = model();
    let cases: [(&[&str], &str); 6] = [
        (&["decode", "--model", &model, "--tokens", "1"], "--tokens 1"),
        (&["kernels", "--rows", "0"], "--rows"),
        (&["kernels", "--format", "q4_k"], "--format is q4_k"),
        (&["context", "--most", "64"], "--most is 64"),
        (&["encode", "--sequences", "17"], "--sequences is 17"),
        (&["prefix", "--model", &model, "--shared", "50"], "--shared is 50"),
    ];
    for (args, part) in cases {
        let output = bench(args);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.contains(part), "{args:?}: {message}");
    }
}
