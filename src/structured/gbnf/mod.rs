//! llama.cpp's grammars (its `grammars/README.md`), read and written again as Lark.
//!
//! llguidance has a lexer: of several pieces of text that it could read at one place it takes the longest, and what it
//! took stays taken. So that this does not matter, everything regular becomes one piece: each rule that does not lead
//! back to itself, each run of such things in a sequence, and all such alternatives together. What remains are rules that
//! refer to themselves, where a text of the grammar may be out of reach if one piece can be read where another ends;
//! every output still belongs to the grammar.

mod parse;
mod write;

use super::limits::check_source;
use crate::error::Result;

/// The grammar as Lark.
///
/// # Errors
/// Mistakes of notation with their line, rules that are missing, and what Lark cannot say, with its rule.
pub(super) fn to_lark(source: &str) -> Result<String> {
    check_source("the grammar", source.len())?;
    write::write(&parse::parse(source)?)
}

/// A rule with its name.
struct Rule {
    name: String,
    body: Node,
}

/// What a rule is made of.
enum Node {
    Text(String),
    /// One character, as a class in the notation of regular expressions.
    Class(String),
    /// Another rule, by name.
    Rule(String),
    /// A special token, as Lark writes it.
    Token(String),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    /// At least and at most so many times.
    Repeat(Box<Node>, u32, Option<u32>),
}
