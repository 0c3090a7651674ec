//! Continues three prompts together. Run it with
//! `cargo run --release --example generate -- path/to/model`.

use octavo::config::EngineOptions;
use octavo::llm::Llm;
use octavo::sampling::SamplingParams;

fn main() -> octavo::error::Result<()> {
    let model = std::env::args().nth(1).expect("usage: generate MODEL (a folder, a .gguf file or a hub id)");
    let llm = Llm::open(model, EngineOptions::default())?;
    let prompts = ["The capital of France is", "Water boils at", "Once upon a time,"];
    let outputs = llm.generate(prompts, SamplingParams::greedy(24))?;
    for (prompt, output) in prompts.iter().zip(outputs) {
        println!("{prompt}{}\n", output.text);
    }
    Ok(())
}
