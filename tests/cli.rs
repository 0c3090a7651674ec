//! The command line as its users meet it: help, refusals, exit codes. Everything here works without a GPU.

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(path)
}

fn octavo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    octavo(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Runs a command that must fail with `code` and without output; returns what it says.
fn refusal(args: &[&str], code: i32) -> String {
    let output = run(args);
    let message = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    assert_eq!(stdout(&output), "", "{args:?}");
    message
}

#[test]
fn help_teaches_every_command_with_examples() {
    let commands: [&[&str]; 5] = [&[], &["generate"], &["chat"], &["eval", "perplexity"], &["inspect"]];
    for command in commands {
        let output = run(&[command, &["--help"]].concat());
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        assert!(stdout(&output).contains("Usage: octavo"), "{command:?}");
    }
    let overview = stdout(&run(&["--help"]));
    for word in ["generate", "chat", "eval", "inspect", "Examples:", "hub id", ".gguf"] {
        assert!(overview.contains(word), "{word} is missing:\n{overview}");
    }
    let generate = stdout(&run(&["generate", "--help"]));
    let options = [
        "--model",
        "--prompt",
        "--prompt-tokens",
        "--prompts",
        "--json",
        "--metrics",
        "--max-tokens",
        "--temperature",
        "--top-k",
        "--top-p",
        "--min-p",
        "--seed",
        "--ignore-eos",
        "--stop",
        "--repetition-penalty",
        "--presence-penalty",
        "--frequency-penalty",
        "--logit-bias",
        "--allowed-token-ids",
        "--bad-words",
        "--min-tokens",
        "--include-stop-str",
        "--logprobs",
        "--prompt-logprobs",
        "--truncate-prompt-tokens",
        "--repetition-detection",
        "--json-schema",
        "--json-object",
        "--regex",
        "--choice",
        "--grammar",
        "--whitespace",
        "--max-logprobs",
        "Structured output",
        "Ends of outputs",
        "--adapter",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--max-model-len",
        "--num-kv-blocks",
        "--memory-limit",
        "--swap-space",
        "--gpu-memory-utilization",
        "--kv-dtype",
        "--no-prefix-cache",
        "--no-chunked-prefill",
        "--long-prefill-token-threshold",
        "--eager",
        "--sync",
        "--submit-budget-ms",
        "--cache-dir",
        "--steps-per-submit",
        "num_cached_tokens",
    ];
    for option in options {
        assert!(generate.contains(option), "{option} is missing:\n{generate}");
    }
}

#[test]
fn wrong_options_are_usage_errors_that_name_them() {
    let model = golden("tiny-llama");
    let model = model.to_str().unwrap();
    let start = ["generate", "--model", model];
    let cases: [(&[&str], &str); 9] = [
        (&[], "--prompt"),
        (&["--prompt", "a", "--prompt-tokens", "1"], "cannot be used with"),
        (&["--prompt", "a", "--temprature", "1"], "--temprature"),
        (&["--prompt-tokens", "1,x"], "x"),
        (&["--prompt", "a", "--kv-dtype", "f64"], "f64"),
        (&["--prompt", "a", "--temperature=-1"], "temperature is -1"),
        (&["--prompt", "a", "--top-p", "0"], "top_p is 0"),
        (&["--prompt", "a", "--max-tokens", "0"], "max_tokens is 0"),
        (&["--prompt", "a", "--max-num-seqs", "600"], "max_num_seqs = 600"),
    ];
    for (rest, part) in cases {
        let message = refusal(&[&start, rest].concat(), 2);
        assert!(message.contains(part), "{rest:?}: {message}");
    }
    refusal(&["frobnicate"], 2);
    refusal(&[], 2);
}

#[test]
fn wrong_sampling_options_are_usage_errors_before_anything_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (broken, grammar) = (write("broken.json", "{\"type\": "), write("grammar.txt", "start: \"a\""));
    let cases: [(&[&str], &[&str]); 14] = [
        (&["--repetition-penalty", "0"], &["repetition_penalty is 0"]),
        (&["--presence-penalty", "-3"], &["presence_penalty is -3, but must be between -2 and 2"]),
        (&["--min-tokens", "300"], &["min_tokens is 300", "max_tokens, which is 256"]),
        (&["--logit-bias", "7"], &["--logit-bias", "token id and a number"]),
        (&["--logit-bias", "7=nan"], &["logit_bias of token 7 is NaN"]),
        (&["--repetition-detection", "3,4,2"], &["max_pattern_size is 3"]),
        (&["--stop", "x", "--no-detokenize"], &["detokenize is false"]),
        (&["--logprobs", "many"], &["--logprobs", "`all`"]),
        (&["--regex", "a", "--json-object"], &["--regex", "cannot be used with", "--json-object"]),
        (&["--choice", "a,b", "--grammar", "x.lark"], &["x.lark"]),
        (&["--json-schema", &broken], &["broken.json", "not JSON"]),
        (&["--json-schema", "{]"], &["--json-schema", "not JSON"]),
        (&["--json-schema", "/no/such/schema.json"], &["/no/such/schema.json"]),
        (&["--grammar", &grammar], &[".lark or .gbnf"]),
    ];
    for command in [["generate", "--prompt"], ["chat", "--message"]] {
        let start = [command[0], "--model", "/no/such/model", command[1], "a"];
        for (rest, parts) in cases {
            let message = refusal(&[&start, rest].concat(), 2);
            assert!(parts.iter().all(|part| message.contains(part)), "{rest:?}: {message}");
        }
    }
    let file =
        write("prompts.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"regex\": \"x\", \"choice\": [\"y\"]}\n");
    let message = refusal(&["generate", "--model", "/no/such/model", "--prompts", &file], 2);
    assert!(message.contains("line 2") && message.contains("both `regex` and `choice`"), "{message}");
}

#[test]
fn bad_model_files_are_failures_that_say_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let whole = std::fs::read(golden("gguf/tiny-llama.Q8_0.gguf")).unwrap();
    let cases = [
        (write("half.gguf", &whole[..whole.len() / 2]), "half.gguf"),
        (write("short.gguf", &whole[..20]), "short.gguf"),
        (write("empty.gguf", b""), "empty.gguf"),
        (write("text.gguf", b"this is no model"), "text.gguf"),
        (folder.path().join("absent.gguf").to_str().unwrap().to_owned(), "absent.gguf"),
    ];
    for (path, part) in &cases {
        for args in [vec!["inspect", path], vec!["generate", "--model", path, "--prompt-tokens", "1"]] {
            let message = refusal(&args, 1);
            assert!(message.starts_with("error: ") && message.contains(part), "{message}");
        }
    }
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    std::fs::write(model.join("config.json"), "{\"model_type\": \"mamba\"}").unwrap();
    let message = refusal(&["inspect", model.to_str().unwrap()], 1);
    assert!(message.contains("mamba") && message.contains("llama"), "{message}");
}

#[test]
fn prompt_files_are_refused_before_anything_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.jsonl");
    std::fs::write(&file, "{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"topk\": 3}\n").unwrap();
    let args = ["generate", "--model", "/no/such/model", "--json", "--prompts"];
    let message = refusal(&[&args[..], &[file.to_str().unwrap()]].concat(), 2);
    assert!(message.contains("line 2") && message.contains("topk"), "{message}");
    let message = refusal(&[&args[..], &["/no/such/prompts.jsonl"]].concat(), 1);
    assert!(message.contains("/no/such/prompts.jsonl"), "{message}");
    let message =
        refusal(&["eval", "perplexity", "--model", "/no/such/model", "--tokens-file", file.to_str().unwrap()], 2);
    assert!(message.contains("JSON array"), "{message}");
}

#[test]
fn inspect_shows_what_a_model_is_made_of() {
    for (model, format) in [("tiny-llama", "f32"), ("gguf/tiny-llama.Q8_0.gguf", "q8_0")] {
        let path = golden(model);
        let path = path.to_str().unwrap();
        let output = run(&["inspect", path, "--json", "--memory-limit", "16"]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let config: Value = serde_json::from_slice(&std::fs::read(golden("tiny-llama/config.json")).unwrap()).unwrap();
        let number = |name: &str| config[name].as_u64().unwrap();
        assert_eq!(found["architecture"], "llama");
        assert_eq!(found["layers"], number("num_hidden_layers"));
        assert_eq!(found["kv_heads"], number("num_key_value_heads"));
        let head_dim = number("hidden_size") / number("num_attention_heads");
        let kv_bytes = 2 * number("num_hidden_layers") * number("num_key_value_heads") * head_dim * 2;
        assert_eq!(found["kv_bytes_per_token"], kv_bytes);
        let formats = found["tensors"].as_array().unwrap();
        assert!(formats.iter().any(|share| share["format"] == format), "{formats:?}");
        let fits = found["memory"]["context_that_fits"].as_u64().unwrap();
        let usable = found["memory"]["usable_bytes"].as_u64().unwrap();
        let weights = found["weight_bytes"].as_u64().unwrap();
        assert_eq!(fits, number("max_position_embeddings").min(usable.saturating_sub(weights) / kv_bytes));
        let table = stdout(&run(&["inspect", path]));
        assert!(table.contains(&format!("tensors in {format}")) && table.contains("KV per token"), "{table}");
    }
}

#[test]
fn inspect_tells_what_layers_have_in_common_and_what_not() {
    let table = |model: &str| stdout(&run(&["inspect", golden(model).to_str().unwrap(), "--memory-limit", "16"]));
    for (model, lines) in [
        (
            "tiny-gemma3",
            &[
                "window of 24 tokens in 3 of 4 layers, query and key heads normed",
                "160 wide, GELU gate",
                "before and after attention and MLP",
                "theta 1000000, 16 of 16 dimensions, linear x8 in 1 of 4 layers",
                "embeddings times 8",
            ][..],
        ),
        (
            "tiny-qwen3-moe",
            &["8 experts 32 wide, SiLU gate, 2 for each token in 2 of 3 layers; 160 wide, SiLU gate in 1 of 3 layers"],
        ),
        ("tiny-gpt2", &["256 wide, GELU\n", "layer norm, before", "positions           learned\n"]),
        ("tiny-gemma2", &["scores capped at 5", "logits capped at 20"]),
    ] {
        let table = table(model);
        for line in lines {
            assert!(table.contains(line), "{model} lacks {line:?}:\n{table}");
        }
    }
}

#[test]
fn inspect_lists_all_families() {
    let table = stdout(&run(&["inspect", "--families"]));
    for family in octavo::model::arch::ALL {
        let row = table.lines().find(|line| line.starts_with(&format!("| {} |", family.family()))).unwrap();
        assert!(family.classes().iter().all(|class| row.contains(class)) && row.contains(family.gguf_name()), "{row}");
    }
    assert!(table.contains("safetensors of F32, F16, BF16"), "{table}");
    refusal(&["inspect", "--families", "model"], 2);
}

#[test]
fn a_model_that_cannot_be_downloaded_is_named() {
    let home = tempfile::tempdir().unwrap();
    let output = octavo(&["inspect", "nobody/no-such-model"])
        .env("HF_HOME", home.path())
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("nobody/no-such-model") && message.contains("HF_HUB_OFFLINE"), "{message}");
}

#[test]
fn a_closed_stdout_is_no_panic() {
    let model = golden("tiny-llama");
    let mut child =
        octavo(&["inspect", model.to_str().unwrap()]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !message.contains("panicked"), "{message}");
}

#[test]
fn prompts_can_come_from_standard_input() {
    let mut child = octavo(&["generate", "--model", "/no/such/model", "--prompts", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"{\"prompt\": \"a\"}\n{\"promt\": \"b\"}\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(message.contains("line 2") && message.contains("promt"), "{message}");
}
