//! Tokens and their probabilities: a table for people, fields for programs.

use octavo::base::TokenId;
use octavo::engine::{Logprob, RequestOutput};
use octavo::text::Tokenizer;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::IsTerminal;

/// How likely a token was, as a field of a result.
#[derive(Serialize)]
pub struct LogprobLine {
    token: TokenId,
    text: String,
    logprob: f64,
    rank: u32,
    /// The likeliest tokens at its place.
    top: Vec<TopLine>,
}

#[derive(Serialize)]
struct TopLine {
    token: TokenId,
    text: String,
    logprob: f32,
}

/// What a result says of its tokens.
pub fn lines(tokenizer: Option<&Tokenizer>, logprobs: &[Logprob]) -> Vec<LogprobLine> {
    let top = |&(token, logprob): &(TokenId, f32)| TopLine { token, text: text_of(tokenizer, token), logprob };
    let line = |found: &Logprob| LogprobLine {
        token: found.token,
        text: text_of(tokenizer, found.token),
        logprob: found.logprob,
        rank: found.rank,
        top: found.top.iter().map(top).collect(),
    };
    logprobs.iter().map(line).collect()
}

/// The tables of what a request asked for: its prompt, its first output.
pub fn tables(tokenizer: Option<&Tokenizer>, output: &RequestOutput) -> String {
    let both = [("prompt", &output.prompt_logprobs), ("token", &output.logprobs)];
    both.into_iter().map(|(title, logprobs)| table_if_asked(title, tokenizer, logprobs)).collect()
}

/// A table after an empty line; nothing where nothing was asked.
pub fn table_if_asked(title: &str, tokenizer: Option<&Tokenizer>, logprobs: &[Logprob]) -> String {
    if logprobs.is_empty() { String::new() } else { format!("\n{}", table(title, tokenizer, logprobs)) }
}

/// Alternatives in a row of the table; a program gets all of them.
const SHOWN: usize = 5;

/// Widest token text in the table.
const WIDEST: usize = 24;

/// A table of tokens: text, probability, rank, the likeliest others. Coloured by probability on a terminal.
fn table(title: &str, tokenizer: Option<&Tokenizer>, logprobs: &[Logprob]) -> String {
    let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let quoted = |token| format!("{:?}", text_of(tokenizer, token));
    let width = logprobs.iter().map(|found| quoted(found.token).chars().count()).max().unwrap_or(0).min(WIDEST);
    let mut table = format!("{title:<width$}  probability  rank  likeliest\n", width = width.max(title.len()));
    for found in logprobs {
        let probability = found.probability();
        let text = format!("{:<width$}", quoted(found.token), width = width.max(title.len()));
        let text = if colours { format!("\x1b[{}m{text}\x1b[0m", colour(probability)) } else { text };
        let others: Vec<String> = (found.top.iter().take(SHOWN))
            .map(|&(token, logprob)| format!("{} {}", quoted(token), percent(f64::from(logprob).exp())))
            .collect();
        let row = format!("{text}  {:>11}  {:>4}  {}", percent(probability), found.rank, others.join(", "));
        // Writing to a text cannot fail.
        let _ = writeln!(table, "{}", row.trim_end());
    }
    table
}

fn percent(probability: f64) -> String {
    format!("{:.1} %", probability * 100.0)
}

/// Green for what the model was sure of, by way of yellow to red for what it hardly expected.
fn colour(probability: f64) -> u32 {
    match probability {
        p if p >= 0.5 => 32,
        p if p >= 0.1 => 33,
        _ => 31,
    }
}

/// What a token adds to a text; parts of characters as U+FFFD.
fn text_of(tokenizer: Option<&Tokenizer>, token: TokenId) -> String {
    match tokenizer {
        Some(tokenizer) => String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned(),
        None => token.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo::text::TokenizerFile;

    #[test]
    fn fields_have_the_true_text_of_tokens() {
        let level = serde_json::json!(
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let file = serde_json::json!({
            "version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level,
            "model": {"type": "BPE", "vocab": {"Ġa": 0, "Ã": 1}, "merges": []},
        });
        let tokenizer = Tokenizer::from_file(&TokenizerFile::Json(file.to_string().into_bytes())).unwrap();
        let found = [Logprob { token: 0, logprob: -0.25, rank: 2, top: vec![(1, -0.125)] }];
        let expected = "[{\"token\":0,\"text\":\" a\",\"logprob\":-0.25,\"rank\":2,\
                        \"top\":[{\"token\":1,\"text\":\"\u{fffd}\",\"logprob\":-0.125}]}]";
        assert_eq!(serde_json::to_string(&lines(Some(&tokenizer), &found)).unwrap(), expected);
    }

    #[test]
    fn a_table_shows_tokens_and_what_else_was_likely() {
        let found = [
            Logprob { token: 5, logprob: 0.5f64.ln(), rank: 1, top: vec![(5, 0.5f32.ln()), (7, 0.25f32.ln())] },
            Logprob { token: 123, logprob: 0.001f64.ln(), rank: 40, top: Vec::new() },
        ];
        let expected = "token  probability  rank  likeliest\n\
                        \"5\"         50.0 %     1  \"5\" 50.0 %, \"7\" 25.0 %\n\
                        \"123\"        0.1 %    40\n";
        assert_eq!(table("token", None, &found), expected);
    }
}
