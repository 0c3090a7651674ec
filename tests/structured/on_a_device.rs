//! Whole requests on the GPU at temperature 1: a model that knows nothing of JSON writes only JSON that fits.

use crate::schemas::{cases, judge};
use octavo::config::EngineOptions;
use octavo::engine::Request;
use octavo::llm::{Flow, Llm, RunNews};
use octavo::sampling::SamplingParams;
use octavo::sched::FinishReason;
use serde_json::Value;
use std::path::PathBuf;

const SEEDS: u64 = 5;

/// Enough for the longest output that a schema bounds; what nothing bounds may be cut.
const MOST_TOKENS: u32 = 180;

/// The model: weights drawn at random, or that of an environment variable.
fn model() -> String {
    std::env::var("OCTAVO_TEST_STRUCTURED_MODEL").unwrap_or_else(|_| {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny-llama").display().to_string()
    })
}

#[test]
fn whatever_the_model_wants_its_output_fits_the_schema() {
    let llm = Llm::open(model(), EngineOptions { max_model_len: Some(256), ..EngineOptions::default() }).unwrap();
    let cases = cases();
    let requests = cases.iter().flat_map(|(schema, _)| {
        (0..SEEDS).map(|seed| {
            let params = SamplingParams::sampled(1.0).seed(seed).max_tokens(MOST_TOKENS).json_schema(schema.clone());
            Request::new("Answer as JSON: ", params)
        })
    });
    let requests: Vec<Request> = requests.collect();
    let mut outputs = vec![None; requests.len()];
    llm.run(requests, |index, news| {
        if let RunNews::Finished(output) = news {
            outputs[index] =
                Some(output.unwrap_or_else(|error| panic!("{}: {error}", cases[index / SEEDS as usize].0)));
        }
        Flow::GoOn
    });
    let mut whole = 0;
    for (index, output) in outputs.into_iter().enumerate() {
        let (schema, most_bytes) = &cases[index / SEEDS as usize];
        let output = output.expect("every request ends");
        if output.finish_reason == FinishReason::Length {
            assert!(most_bytes.is_none_or(|bytes| bytes >= MOST_TOKENS as usize), "{schema}: cut off: {}", output.text);
            continue;
        }
        whole += 1;
        let value: Value =
            serde_json::from_str(&output.text).unwrap_or_else(|error| panic!("{schema}: {error} in {}", output.text));
        if let Err(error) = judge(schema).validate(&value) {
            panic!("{schema}: {error} in {}", output.text);
        }
        assert!(most_bytes.is_none_or(|bytes| output.text.len() <= bytes), "{schema}: too long: {}", output.text);
    }
    println!("{whole} of {} outputs came to their end, and all of them fit", cases.len() * SEEDS as usize);
    assert!(whole >= 60 * SEEDS as usize, "{whole}");
}
