//! The command line on a real device: a workload of JSON lines whose answers hold what was asked, and text with a table.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn octavo(args: &[&str]) -> Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny-llama");
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    let small = ["--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--max-model-len", "128"];
    command.args(["generate", "--model", model.to_str().unwrap()]).args(small).args(args);
    command.stdin(Stdio::null()).output().unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn a_workload_of_lines_gets_what_each_line_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.jsonl");
    let prompt = r#""prompt_token_ids": [5, 6, 7, 8], "max_tokens": 6, "ignore_eos": true"#;
    let wishes = [
        r#""logprobs": 3, "prompt_logprobs": 1"#,
        "",
        r#""allowed_token_ids": [40, 41], "temperature": 1, "seed": 3"#,
        r#""allowed_token_ids": [40], "stop_token_ids": [40], "min_tokens": 2"#,
        r#""logit_bias": {"600": 1}"#,
        r#""logit_bias": {"77": 100}, "repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 3}"#,
        r#""stop_token_ids": [77], "logit_bias": {"77": 100}, "include_stop_str_in_output": true, "logprobs": 0"#,
        r#""detokenize": false, "truncate_prompt_tokens": 2"#,
        r#""logprobs": "all""#,
    ];
    let text: String =
        wishes.iter().map(|wish| format!("{{{prompt}{}{wish}}}\n", if wish.is_empty() { "" } else { ", " })).collect();
    std::fs::write(&file, text).unwrap();
    let output = octavo(&["--json", "--prompts", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Three lines cannot be answered, and say why.
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("3 of 9 prompts failed"), "{said}");
    let answers = lines(&output);
    assert_eq!(answers.len(), wishes.len());

    let full = &answers[0];
    let tokens = ids(&full["token_ids"]);
    let logprobs = full["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.iter().map(|found| found["token"].as_u64().unwrap()).collect::<Vec<_>>(), tokens);
    for found in logprobs {
        // Greedy: the token is the likeliest one.
        assert_eq!((&found["rank"], &found["top"][0]["token"]), (&1.into(), &found["token"]));
        assert_eq!(found["top"].as_array().unwrap().len(), 3);
        assert_eq!(found["text"], found["top"][0]["text"]);
        assert!(found["logprob"].as_f64().unwrap() < 0.0);
    }
    let prompt = full["prompt_logprobs"].as_array().unwrap();
    assert_eq!(prompt.iter().map(|found| found["token"].as_u64().unwrap()).collect::<Vec<_>>(), [6, 7, 8]);
    assert_eq!(prompt[0]["top"].as_array().unwrap().len(), 1);

    let plain = &answers[1];
    assert_eq!(ids(&plain["token_ids"]), tokens, "reports change nothing");
    assert!(plain.get("logprobs").is_none() && plain.get("prompt_logprobs").is_none());
    assert!(ids(&answers[2]["token_ids"]).iter().all(|token| [40, 41].contains(token)));
    let error = |answer: &Value| answer["error"].as_str().unwrap().to_owned();
    assert!(
        error(&answers[3]).contains("token number 1: allowed_token_ids, min_tokens forbid"),
        "{}",
        error(&answers[3])
    );
    assert!(error(&answers[4]).contains("logit_bias names 600"), "{}", error(&answers[4]));
    assert_eq!((&answers[5]["finish_reason"], ids(&answers[5]["token_ids"])), (&"repetition".into(), vec![77; 3]));
    let kept = &answers[6];
    assert_eq!((&kept["finish_reason"], ids(&kept["token_ids"])), (&"stop".into(), vec![77]));
    assert_eq!(kept["text"], kept["logprobs"][0]["text"]);
    assert_eq!((&answers[7]["text"], ids(&answers[7]["prompt_token_ids"])), (&"".into(), vec![7, 8]));
    assert!(error(&answers[8]).contains("max_logprobs allows 20"), "{}", error(&answers[8]));
}

#[test]
fn a_table_follows_the_text() {
    let output = octavo(&["--prompt-tokens", "5,6,7,8", "--max-tokens", "4", "--ignore-eos", "--logprobs", "2"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let (_, table) = text.split_once("\n\ntoken").expect("a table after an empty line");
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[0].ends_with("probability  rank  likeliest"), "{table}");
    assert_eq!(rows.len(), 5, "{table}");
    // Nothing but text where nobody looks at a terminal.
    assert!(rows[1..].iter().all(|row| row.starts_with('"') && row.contains(" %     1  \"")), "{table}");
    assert!(!text.contains('\x1b'), "{table}");
}

#[cfg(feature = "structured")]
#[test]
fn constrained_lines_get_outputs_that_fit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.jsonl");
    let wishes = [
        r#""choice": ["yes", "no", "perhaps"]"#,
        r#""regex": "[ab]{3}-[0-9]{2}""#,
        r#""json_schema": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 3, "maxItems": 3}"#,
        r#""grammar": {"gbnf": "root ::= \"x\" [yz] \"!\""}"#,
        r#""regex": "(""#,
        r#""choice": ["no"], "logprobs": 1"#,
    ];
    // What a model of random weights would say by itself fits nothing.
    let prompt = r#""prompt_token_ids": [5, 6, 7, 8], "max_tokens": 40, "temperature": 1, "seed": 4"#;
    let text: String = wishes.iter().map(|wish| format!("{{{prompt}, {wish}}}\n")).collect();
    std::fs::write(&file, text).unwrap();
    let output = octavo(&["--json", "--prompts", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("1 of 6 prompts failed"), "{said}");
    let answers = lines(&output);
    let text =
        |index: usize| answers[index]["text"].as_str().unwrap_or_else(|| panic!("{}", answers[index])).to_owned();
    assert!(["yes", "no", "perhaps"].contains(&text(0).as_str()), "{}", text(0));
    let code = text(1);
    let (letters, digits) = code.split_once('-').unwrap();
    assert!(letters.len() == 3 && letters.chars().all(|c| "ab".contains(c)), "{code}");
    assert!(digits.len() == 2 && digits.chars().all(|c| c.is_ascii_digit()), "{code}");
    let digits: Vec<u8> = serde_json::from_str(&text(2)).unwrap();
    assert!(digits.len() == 3 && digits.iter().all(|digit| *digit <= 9), "{digits:?}");
    assert!(["xy!", "xz!"].contains(&text(3).as_str()), "{}", text(3));
    assert!(answers[4]["error"].as_str().unwrap().contains("regex"), "{}", answers[4]);
    // Log-probabilities are the model's own: of each token, those without a choice too.
    let logprobs = answers[5]["logprobs"].as_array().unwrap();
    let tokens: Vec<u64> = logprobs.iter().map(|found| found["token"].as_u64().unwrap()).collect();
    assert_eq!((text(5).as_str(), tokens), ("no", ids(&answers[5]["token_ids"])));
    assert!(answers[..4].iter().chain([&answers[5]]).all(|answer| answer["finish_reason"] == "stop"), "{answers:?}");
}
