//! Structured output: tokens that keep a text within a JSON Schema, a regular expression, a choice or a grammar.
//!
//! A [`GrammarCompiler`] knows the vocabulary of one model. For each request it makes a guide, and the guide says before
//! each token which ones may come, as a bitset that the sampler applies before everything else. So whatever the model
//! prefers, the output fits. [llguidance](https://github.com/guidance-ai/llguidance) does the parsing; here are the
//! vocabulary, what goes into the library, and the promises around it.
//!
//! ```no_run
//! use octavo::sampling::guide::GuideCompiler;
//! use octavo::sampling::{Constraint, Whitespace};
//! use octavo::structured::GrammarCompiler;
//! # fn main() -> octavo::Result<()> {
//! # let tokenizer: octavo::text::Tokenizer = todo!();
//! let compiler = GrammarCompiler::new(tokenizer, vec![2], 49_152);
//! let schema = serde_json::json!({
//!     "type": "object",
//!     "properties": {"city": {"type": "string", "maxLength": 40}, "population": {"type": "integer", "minimum": 0}},
//!     "required": ["city", "population"],
//!     "additionalProperties": false,
//! });
//! let mut guide = compiler.compile(&Constraint::JsonSchema(schema), Whitespace::Compact)?;
//! let mut mask = vec![0; 49_152 / 32];
//! while !guide.is_done() {
//!     guide.fill_mask(&mut mask)?;
//!     // The sampler chooses among the tokens whose bits are set.
//!     # let token = octavo::sampling::guide::forced_token(&mask).unwrap_or(0);
//!     guide.accept(token)?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What a constraint can be
//!
//! - **A JSON Schema**, as a value or as text. Every keyword is enforced or refused by its name and place; only
//!   annotations are passed over. References stay within the schema. Formats: date-time, date, time, duration, email,
//!   hostname, ipv4, ipv6, uuid, uri, json-pointer, and those of numbers (int32, uint8, double and their like).
//! - **Any JSON object.** The schema `{}` asks for one too.
//! - **A regular expression** in Rust's notation, matched from the first to the last character. (Patterns in schemas are
//!   ECMAScript's, and match anywhere unless they have anchors, as the standard says.)
//! - **One of several texts.**
//! - **A grammar**: Lark as llguidance reads it, or llama.cpp's GBNF, which is rewritten as Lark.
//!
//! # What is promised
//!
//! - An output of a schema parses and validates. What the schema leaves open is written in one way: properties in the
//!   order of the schema; numbers without exponents, within ±(2⁵³ − 1), with at most eight digits after the point; white
//!   space none, or as much in a row as `Whitespace` says; the escapes `\n \r \t \b \f \" \\` and no others. Only inside
//!   values that a schema says nothing about, where it also has `allOf` or the like and refers to itself, numbers have no
//!   bound.
//! - It is done with the last byte of the value.
//! - Special tokens come only where a grammar names them. Ids that the tokenizer does not know never come. End tokens come
//!   all together, and exactly where the output may end.
//! - A guide depends on nothing but its constraint and its own tokens. Forks and rollbacks give the same masks as going
//!   straight.
//! - A constraint that costs too much, that nothing satisfies, or that is broken is an error that says which part;
//!   [`limits`] has the numbers. If no token may follow in the middle of an output, the error says after how many.
//!
//! # Tokens that are forced
//!
//! Where a mask has a single token, the sampler has no choice ([`forced_token`](crate::sampling::guide::forced_token)) and
//! a forward pass for it can wait or be saved. Masks hold all tokens that fit, never only those that the tokenizer would
//! choose, so a token is forced with or without such savings.

mod choice;
mod compiler;
mod gbnf;
mod guide;
mod kept_masks;
mod lark;
pub mod limits;
mod regex;
mod schema;
mod vocabulary;

pub use compiler::GrammarCompiler;
