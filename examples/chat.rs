//! A plain conversation in the terminal: each line is a message. Earlier turns come from the prefix cache.
//! Run it with `cargo run --release --example chat -- path/to/model`.

use octavo::config::EngineOptions;
use octavo::llm::Llm;
use octavo::sampling::SamplingParams;
use octavo::text::ChatMessage;

fn main() -> octavo::error::Result<()> {
    let model = std::env::args().nth(1).expect("usage: chat MODEL (a folder, a .gguf file or a hub id)");
    let llm = Llm::open(model, EngineOptions::default())?;
    let mut messages = vec![ChatMessage::new("system", "You are a helpful assistant. Answer briefly.")];
    for line in std::io::stdin().lines() {
        messages.push(ChatMessage::new("user", line.expect("a line of text")));
        let answer = llm.chat(&messages, SamplingParams::greedy(200))?;
        println!("{}", answer.text);
        let usage = answer.usage;
        eprintln!("[{} of {} prompt tokens were cached]", usage.cached_tokens, usage.prompt_tokens);
        messages.push(ChatMessage::new("assistant", answer.text));
    }
    Ok(())
}
