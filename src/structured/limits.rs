//! What a constraint may cost. A client's constraint is foreign input: it is refused before it can exhaust the stack, and
//! the library counts its own work.

use crate::error::{Error, Result};
use llguidance::api::ParserLimits;
use serde_json::Value;

/// Bytes of a schema, expression, grammar or all choices together. The largest published schemas are some 100 kB.
pub const MAX_SOURCE_BYTES: usize = 512 << 10;

/// How deep the lists and objects of a schema may nest.
pub const MAX_NESTING: usize = 128;

/// How deep the lists and objects of a schema may nest, references followed.
pub const MAX_DEPTH: usize = 256;

/// Strings with a pattern or format in one schema. The library checks of each that something matches it, which takes
/// milliseconds.
pub const MAX_PATTERNS: usize = 500;

/// Entries of one `patternProperties`: the library compares each with each.
pub const MAX_PATTERN_PROPERTIES: usize = 16;

/// Characters that an expression stands for with its repetitions written out.
pub const MAX_REGEX_SIZE: u64 = 20_000;

/// Choices of one constraint.
pub const MAX_CHOICES: usize = 10_000;

/// Rules of a grammar.
pub const MAX_RULES: usize = 1_000;

/// The stack on which constraints are compiled: [`MAX_RULES`] rules that use each other, with room to spare in unoptimised
/// builds. It is
/// address space; only what is used becomes memory.
pub(super) const COMPILE_STACK_BYTES: usize = 64 << 20;

/// The library's own limits.
pub(super) fn parser_limits() -> ParserLimits {
    ParserLimits {
        // Alternatives that are open at one place.
        max_items_in_row: 2_000,
        // 50,000 in a millisecond by the library's account: 40 ms to build the expressions.
        initial_lexer_fuel: 2_000_000,
        // 14 ms for one mask, and 2.5 ms.
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        // One or two kilobytes each.
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        // Errors would carry the whole output.
        verbose_errors: false,
    }
}

/// # Errors
/// More bytes than [`MAX_SOURCE_BYTES`].
pub(super) fn check_source(what: &str, bytes: usize) -> Result<()> {
    if bytes > MAX_SOURCE_BYTES {
        return Err(Error::config(format!("{what} has {bytes} bytes, more than the limit of {MAX_SOURCE_BYTES}")));
    }
    Ok(())
}

/// Checks depth and size of `value` without recursion.
///
/// # Errors
/// Lists and objects deeper than [`MAX_NESTING`], or more than [`MAX_SOURCE_BYTES`] as JSON.
pub(super) fn check_value(value: &Value) -> Result<()> {
    let mut bytes = 0usize;
    let mut open = vec![(value, 1)];
    while let Some((value, depth)) = open.pop() {
        if depth > MAX_NESTING {
            return Err(Error::config(format!("the schema nests deeper than the limit of {MAX_NESTING} levels")));
        }
        // What the value takes at least, written without spaces.
        bytes += match value {
            Value::String(text) => text.len() + 3,
            Value::Object(entries) => entries.keys().map(|key| key.len() + 4).sum::<usize>() + 2,
            _ => 2,
        };
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(entries) => open.extend(entries.values().map(|entry| (entry, depth + 1))),
            _ => {}
        }
    }
    check_source("the schema", bytes)
}
