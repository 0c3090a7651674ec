//! The options about what an output must look like, and their reading, which prompt files share.

use clap::Args;
use octavo::sampling::{Constraint, Grammar, Whitespace};
use serde_json::Value;
use std::path::Path;

/// At most one of them, and white space.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Structured output (one of them)")]
pub struct ConstraintArgs {
    /// The output is JSON that this JSON Schema accepts
    #[arg(long, value_name = "FILE|TEXT", value_parser = schema, group = "constraint")]
    json_schema: Option<Constraint>,
    /// The output is a JSON object
    #[arg(long, group = "constraint")]
    json_object: bool,
    /// The output is a text that this regular expression matches as a whole
    #[arg(long, value_name = "PATTERN", group = "constraint")]
    regex: Option<String>,
    /// The output is one of these texts
    #[arg(long, value_name = "A,B,..", value_delimiter = ',', group = "constraint")]
    choice: Option<Vec<String>>,
    /// The output is a text of this grammar, in Lark or GBNF
    #[arg(long, value_name = "FILE.lark|FILE.gbnf", value_parser = grammar_file, group = "constraint")]
    grammar: Option<Constraint>,
    /// White space between the tokens of JSON: none, or up to so many characters in a row
    #[arg(long, value_name = "compact|N", default_value = "compact", value_parser = whitespace)]
    pub whitespace: Whitespace,
}

impl ConstraintArgs {
    /// The one that was given.
    pub fn constraint(&self) -> Option<Constraint> {
        let object = self.json_object.then_some(Constraint::JsonObject);
        let regex = self.regex.clone().map(Constraint::Regex);
        let choice = self.choice.clone().map(Constraint::Choice);
        object.or(regex).or(choice).or_else(|| self.json_schema.clone()).or_else(|| self.grammar.clone())
    }
}

/// A schema as it stands, if it looks like one, or the file of that name.
fn schema(text: &str) -> Result<Constraint, String> {
    let start = text.trim_start();
    let given = start.starts_with('{') || ["true", "false"].contains(&start.trim_end());
    let schema = if given { text.to_owned() } else { read(text)? };
    schema_of(&schema).map_err(|error| if given { error } else { format!("{text}: {error}") })
}

/// A schema in JSON.
pub fn schema_of(text: &str) -> Result<Constraint, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("the schema is not JSON: {error}"))?;
    Ok(Constraint::JsonSchema(value))
}

fn grammar_file(path: &str) -> Result<Constraint, String> {
    let kind = Path::new(path).extension().and_then(|extension| extension.to_str());
    let grammar = match kind {
        Some("lark") => Grammar::Lark(read(path)?),
        Some("gbnf") => Grammar::Gbnf(read(path)?),
        _ => return Err("the notation is told by the end of the file's name, which must be .lark or .gbnf".into()),
    };
    Ok(Constraint::Grammar(grammar))
}

/// White space in JSON by its name.
pub fn whitespace(text: &str) -> Result<Whitespace, String> {
    match text {
        "compact" => Ok(Whitespace::Compact),
        _ => text.parse().map(Whitespace::UpTo).map_err(|_| "`compact`, or a number of characters".into()),
    }
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))
}
