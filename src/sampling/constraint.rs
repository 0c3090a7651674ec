//! What an output must look like.

/// What an output must look like; a request has at most one. It needs the feature `structured`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Constraint {
    /// A JSON value that a [JSON Schema](https://json-schema.org) accepts.
    JsonSchema(serde_json::Value),
    /// Any JSON object.
    JsonObject,
    /// A text that a regular expression matches from its first to its last character.
    Regex(String),
    /// One of several texts.
    Choice(Vec<String>),
    /// A text of the language of a grammar.
    Grammar(Grammar),
}

/// A grammar, in the notation of
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Grammar {
    /// Lark, as [llguidance](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md) reads it.
    Lark(String),
    /// llama.cpp's GBNF.
    Gbnf(String),
}

impl Constraint {
    /// The name of its kind, as in options and JSON.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) => "json_schema",
            Self::JsonObject => "json_object",
            Self::Regex(_) => "regex",
            Self::Choice(_) => "choice",
            Self::Grammar(_) => "grammar",
        }
    }
}

/// White space between the tokens of JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Whitespace {
    /// None: the shortest output, and a model cannot lose itself in blank lines.
    #[default]
    Compact,
    /// Up to so many spaces, tabs and line breaks in a row, as the model likes.
    UpTo(u32),
}
