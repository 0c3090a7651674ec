//! The recorded cases of `golden/sampling`: parameters, tokens so far, logits, and the exact distribution they mean.

// Each test program uses its own part of this file.
#![allow(dead_code)]

use crate::golden::{self, Tensors};
use octavo::base::TokenId;
use octavo::sampling::{SamplingLists, SamplingParams};

/// One recorded case.
pub struct Recorded {
    pub name: String,
    pub logits: Vec<f32>,
    pub params: SamplingParams,
    pub lists: SamplingLists,
    pub prompt: Vec<TokenId>,
    pub output: Vec<TokenId>,
    /// Exact distribution over the tokens that can be drawn, by token.
    pub distribution: Vec<(TokenId, f64)>,
}

/// All of them.
pub fn all() -> Vec<Recorded> {
    let list = golden::json("sampling/sampling.json");
    let tensors = Tensors::open("sampling/sampling.safetensors");
    let cases: Vec<Recorded> = list["cases"].as_array().unwrap().iter().map(|case| read(case, &tensors)).collect();
    assert_eq!(cases.len(), 87);
    cases
}

fn read(case: &serde_json::Value, tensors: &Tensors) -> Recorded {
    let mut params = SamplingParams { temperature: 1.0, ..Default::default() };
    let mut lists = SamplingLists::default();
    for (key, value) in case["params"].as_object().unwrap() {
        let number = || value.as_f64().unwrap_or_else(|| panic!("{key}: {value}"));
        match key.as_str() {
            "temperature" => params.temperature = number() as f32,
            "top_k" => params.top_k = number() as u32,
            "top_p" => params.top_p = number() as f32,
            "min_p" => params.min_p = number() as f32,
            "repetition_penalty" => params.repetition_penalty = number() as f32,
            "presence_penalty" => params.presence_penalty = number() as f32,
            "frequency_penalty" => params.frequency_penalty = number() as f32,
            "min_tokens" => params.min_tokens = number() as u32,
            "stop_token_ids" => lists.early_stops = golden::ids(value),
            "allowed_token_ids" => lists.allowed = Some(golden::ids(value)),
            "logit_bias" => {
                let biases = value.as_object().unwrap().iter();
                lists.bias = biases.map(|(id, bias)| (id.parse().unwrap(), bias.as_f64().unwrap() as f32)).collect();
            }
            _ => panic!("what is {key}?"),
        }
    }
    let name = case["name"].as_str().unwrap();
    let probabilities = tensors.floats(&format!("probs.{name}"));
    let ids = match case["form"].as_str().unwrap() {
        "sparse" => tensors.ids(&format!("ids.{name}")),
        _ => (0..probabilities.len() as u32).collect(),
    };
    let mut distribution: Vec<(TokenId, f64)> = ids.into_iter().zip(probabilities).collect();
    // Dense lists have zeros for what cannot be drawn.
    distribution.retain(|(_, probability)| *probability > 0.0);
    distribution.sort_by_key(|(token, _)| *token);
    Recorded {
        name: name.into(),
        logits: tensors.f32s(case["logits"].as_str().unwrap()),
        params,
        lists,
        prompt: golden::ids(&case["prompt_ids"]),
        output: golden::ids(&case["output_ids"]),
        distribution,
    }
}

/// Holds a distribution, by token, against the recorded one. Over a large vocabulary top-p lets a few tokens at its border differ.
///
/// # Errors
/// Says which token is outside the tolerance.
pub fn compare(recorded: &Recorded, ours: &[(TokenId, f64)]) -> Result<(), String> {
    let few = if recorded.logits.len() > 1000 && recorded.params.top_p < 1.0 { 4 } else { 0 };
    let mut probabilities = vec![[0.0; 2]; recorded.logits.len()];
    for (side, distribution) in [ours, &recorded.distribution].into_iter().enumerate() {
        for &(token, probability) in distribution {
            probabilities[token as usize][side] = probability;
        }
    }
    let mut only_one = 0;
    for (token, [ours, exact]) in probabilities.into_iter().enumerate() {
        if (ours == 0.0) != (exact == 0.0) {
            only_one += 1;
            if only_one > few {
                return Err(format!("token {token} has probability {ours}, recorded {exact}"));
            }
        } else if exact < f64::from(f32::MIN_POSITIVE) {
            // The largest distributions are recorded in f32, which has few bits there.
        } else if (ours - exact).abs() > 1e-5_f64.min(1e-4 * exact.max(f64::MIN_POSITIVE)) {
            return Err(format!("token {token} has probability {ours}, recorded {exact}"));
        }
    }
    Ok(())
}
