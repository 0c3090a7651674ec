//! The table of the README: every family and format that octavo has recordings for, run on this machine's GPU and compared
//! with them token by token. Needs a checkout, for the recordings lie in `tests/golden`.
//!
//! `cargo run --release --example families`

use octavo::base::TokenId;
use octavo::{EngineOptions, KvDtype, Llm, SamplingParams};
use serde_json::Value;
use std::error::Error;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    println!("| family | source | matrices | greedy tokens as recorded |\n|---|---|---|---|");
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(&golden)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    folders.retain(|folder| folder.join("golden.json").exists());
    folders.sort();
    for folder in folders {
        row(&folder, "safetensors", json(&folder.join("golden.json"))?["prompts"].as_array().into_iter().flatten())?;
    }
    let list = json(&golden.join("gguf/gguf.json"))?;
    for file in list["files"].as_array().into_iter().flatten() {
        let path = golden.join("gguf").join(file["file"].as_str().unwrap_or_default());
        row(&path, "GGUF", file["prompts"].as_array().into_iter().flatten())?;
    }
    Ok(())
}

fn json(path: &Path) -> Result<Value, Box<dyn Error>> {
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

fn ids(list: &Value) -> Vec<TokenId> {
    list.as_array().into_iter().flatten().filter_map(|id| id.as_u64()?.try_into().ok()).collect()
}

/// Runs all prompts of one model together.
fn row<'a>(model: &Path, source: &str, prompts: impl Iterator<Item = &'a Value>) -> Result<(), Box<dyn Error>> {
    // As what was recorded.
    let (kv_dtype, activations) = (KvDtype::F32, octavo::config::Activations::F32);
    let options = EngineOptions { kv_dtype, activations, max_num_seqs: 8, ..EngineOptions::default() };
    let llm = Llm::open(model.to_string_lossy(), options)?;
    let (prompts, expected): (Vec<_>, Vec<_>) =
        prompts.map(|prompt| (ids(&prompt["ids"]), ids(&prompt["greedy_ids"]))).unzip();
    let params: Vec<SamplingParams> = (expected.iter())
        .map(|tokens| SamplingParams { ignore_eos: true, ..SamplingParams::greedy(tokens.len() as u32) })
        .collect();
    let outputs = llm.generate(prompts.iter().map(Vec::as_slice), params)?;
    let agree =
        |(found, expected): (&[TokenId], &[TokenId])| found.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let good: usize =
        outputs.iter().zip(&expected).map(|(output, expected)| agree((&output.token_ids, expected))).sum();
    let all: usize = expected.iter().map(Vec::len).sum();
    let mut kinds: Vec<&str> =
        (llm.files().tensors.infos()).filter(|info| info.shape.len() > 1).map(|info| info.dtype.name()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    println!("| {} | {source} | {} | {good} of {all} |", llm.spec().family, kinds.join(", "));
    Ok(())
}
