//! Shows a text as it is written. Any async runtime will do; here `pollster` drives the stream.
//! Run it with `cargo run --release --example stream -- path/to/model "Once upon a time"`.

use futures::StreamExt;
use octavo::config::EngineOptions;
use octavo::engine::{Request, TokenEvent};
use octavo::llm::Llm;
use octavo::sampling::SamplingParams;
use std::io::Write;

fn main() -> octavo::error::Result<()> {
    let mut args = std::env::args().skip(1);
    let model = args.next().expect("usage: stream MODEL [PROMPT]");
    let prompt = args.next().unwrap_or_else(|| "Once upon a time,".into());
    let llm = Llm::open(model, EngineOptions::default())?;
    // Dropping the stream at any time cancels the request and frees its memory.
    let params = SamplingParams { temperature: 0.8, top_p: 0.95, ..SamplingParams::greedy(100) };
    let mut stream = llm.engine().generate(Request::new(prompt.as_str(), params))?;
    print!("{prompt}");
    pollster::block_on(async {
        while let Some(event) = stream.next().await {
            match event? {
                TokenEvent::Delta { text, .. } => {
                    print!("{text}");
                    std::io::stdout().flush().expect("stdout is open");
                }
                TokenEvent::Finished(end) => {
                    println!("\n[{}: {} tokens, seed {}]", end.reason.name(), end.usage.output_tokens, end.seed);
                }
                _ => {}
            }
        }
        Ok(())
    })
}
