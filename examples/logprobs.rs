//! Shows how sure the model was of each token, and what else it thought of. Run it with
//! `cargo run --release --example logprobs -- path/to/model "The capital of France is"`.

use octavo::base::TokenId;
use octavo::{EngineOptions, Llm, SamplingParams};

fn main() -> octavo::Result<()> {
    let mut args = std::env::args().skip(1);
    let model = args.next().expect("usage: logprobs MODEL [PROMPT]");
    let prompt = args.next().unwrap_or_else(|| "The capital of France is".into());
    let llm = Llm::open(model, EngineOptions::default())?;
    let text = |token: TokenId| match llm.engine().tokenizer() {
        Some(tokenizer) => format!("{:?}", String::from_utf8_lossy(tokenizer.token_bytes(token))),
        None => token.to_string(),
    };
    // The numbers are the model's own, before temperature and filters.
    let params = SamplingParams::sampled(0.8).top_p(0.95).seed(1).max_tokens(16).logprobs(3);
    let output = &llm.generate([prompt.as_str()], params)?[0];
    println!("{prompt}{}\n", output.text);
    for token in &output.logprobs {
        let others: Vec<String> = (token.top.iter())
            .map(|(other, logprob)| format!("{} {:.1} %", text(*other), 100.0 * logprob.exp()))
            .collect();
        println!("{:>16} {:5.1} %   of {}", text(token.token), 100.0 * token.probability(), others.join(", "));
    }
    let bits: f64 = output.logprobs.iter().map(|token| -token.logprob / std::f64::consts::LN_2).sum();
    println!("\n{:.1} bits of surprise in {} tokens", bits, output.token_ids.len());
    Ok(())
}
