//! `octavo bench structured`: what a grammar costs, on the processor alone: a mask for each token, at the beginning and
//! far into an output, and compiling, by the size of the schema.

use super::report::{Table, number};
use crate::Outcome;
use crate::output;
use octavo::base::{TokenId, rng};
use octavo::error::{Error, Result};
use octavo::model::files::ModelFiles;
use octavo::model::text_files;
use octavo::sampling::guide::GuideCompiler;
use octavo::sampling::{Constraint, Grammar, Whitespace};
use octavo::sim::Spread;
use octavo::structured::GrammarCompiler;
use octavo::text::{Tokenizer, TokenizerFile};
use octavo::weights::FileBytes;
use octavo::weights::gguf::GgufFile;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  octavo bench structured --model M                      masks and compiling with the vocabulary of a model
  octavo bench structured --tokenizer tokenizer.json     of a tokenizer alone; also from a GGUF file
  octavo bench structured --model M --tokens 1000 --json

The same texts are written each time, token by token, each under a constraint that they fit. For the first and the last
tokens and for accepting, the table has medians.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Model whose vocabulary is taken: a folder or a GGUF file
    #[arg(long, value_name = "PATH", required_unless_present = "tokenizer")]
    model: Option<PathBuf>,
    /// tokenizer.json or a GGUF file, instead of a model
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    tokenizer: Option<PathBuf>,
    /// Length of each output
    #[arg(long, value_name = "N", default_value_t = 4000)]
    tokens: usize,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

/// Tokens at the beginning and at the end that are looked at by themselves.
const WINDOW: usize = 100;

/// Words that an expression can count within its limit of size.
const MOST_COUNTED: usize = 1200;

/// A constraint and a text that fits it.
struct Case {
    name: &'static str,
    constraint: Constraint,
    text: String,
}

/// Times in microseconds.
#[derive(serde::Serialize)]
struct MaskTimes {
    case: &'static str,
    tokens: usize,
    compile_micros: f64,
    mask: Spread,
    first_masks: Spread,
    last_masks: Spread,
    accept: Spread,
}

#[derive(serde::Serialize)]
struct CompileTime {
    properties: usize,
    bytes: usize,
    micros: Spread,
}

pub fn run(args: &Args) -> Result<Outcome> {
    if args.tokens == 0 {
        return Err(Error::config("--tokens is 0, but must be at least 1"));
    }
    let (tokenizer, end_tokens, vocab_size) = vocabulary(args)?;
    let compiler = GrammarCompiler::new(tokenizer.clone(), end_tokens, vocab_size);
    let began = Instant::now();
    compiler.warm_up()?;
    let vocabulary_micros = micros(began);
    let masks: Vec<_> = cases(args.tokens)
        .iter()
        .map(|case| follow(case, &compiler, &tokenizer, vocab_size, args.tokens))
        .collect::<Result<_>>()?;
    let compiles: Vec<_> =
        [1, 10, 100, 1000].into_iter().map(|properties| compile(properties, &compiler)).collect::<Result<_>>()?;
    let _reader = match args.json {
        true => output::write_json(&json!({
            "bench": "structured",
            "vocab_size": vocab_size,
            "vocabulary_micros": vocabulary_micros,
            "masks": masks,
            "compile": compiles,
        }))?,
        false => output::write(&report(vocab_size, vocabulary_micros, &masks, &compiles))?,
    };
    Ok(Outcome::Success)
}

fn report(vocab_size: usize, vocabulary_micros: f64, masks: &[MaskTimes], compiles: &[CompileTime]) -> String {
    let first = format!("first {WINDOW}");
    let last = format!("last {WINDOW}");
    let mut table =
        Table::new(&["microseconds a token", "tokens", "mask", "median", "p99", &first, &last, "accept", "compile"]);
    for times in masks {
        let numbers = [times.mask.mean, times.mask.p50, times.mask.p99, times.first_masks.p50, times.last_masks.p50];
        let mut row = vec![times.case.to_owned(), times.tokens.to_string()];
        row.extend(numbers.into_iter().chain([times.accept.p50, times.compile_micros]).map(number));
        table.row(row);
    }
    let mut sizes = Table::new(&["compiling", "bytes", "milliseconds", "most"]);
    for compile in compiles {
        let name = format!("{} properties", compile.properties);
        let times = [compile.micros.p50 / 1e3, compile.micros.max / 1e3].map(number);
        sizes.row([vec![name, compile.bytes.to_string()], times.to_vec()].concat());
    }
    let prepared = number(vocabulary_micros / 1e3);
    format!("{vocab_size} tokens in the vocabulary, prepared once in {prepared} ms\n{table}\n{sizes}")
}

fn vocabulary(args: &Args) -> Result<(Tokenizer, Vec<TokenId>, usize)> {
    let without = || Error::config("there is no tokenizer; name one with --tokenizer");
    if let Some(path) = &args.model {
        let files = ModelFiles::open(path)?;
        let tokenizer = Tokenizer::from_file(files.text.tokenizer.as_ref().ok_or_else(without)?)?;
        return Ok((tokenizer, files.end_tokens.clone(), files.spec.vocab_size));
    }
    let path = args.tokenizer.as_deref().ok_or_else(without)?;
    let file = tokenizer_file(path)?.ok_or_else(without)?;
    let end_tokens = match &file {
        TokenizerFile::Gguf(vocab) => vocab.end_token_ids.clone(),
        TokenizerFile::Json(_) => Vec::new(),
    };
    let tokenizer = Tokenizer::from_file(&file)?;
    let size = tokenizer.vocab_size();
    Ok((tokenizer, end_tokens, size))
}

fn tokenizer_file(path: &Path) -> Result<Option<TokenizerFile>> {
    if path.extension().is_some_and(|extension| extension == "gguf") {
        return Ok(text_files::from_gguf(GgufFile::new(FileBytes::map(path)?)?.metadata())?.tokenizer);
    }
    let bytes = std::fs::read(path).map_err(|error| Error::load(format!("{}: {error}", path.display())))?;
    Ok(Some(TokenizerFile::Json(bytes)))
}

/// Texts that are long enough for `tokens` in any vocabulary with words.
fn cases(tokens: usize) -> Vec<Case> {
    let rows: Vec<Value> = (0..=tokens as u64 / 8).map(row).collect();
    let of_row = json!({
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": 0},
            "name": {"type": "string", "maxLength": 60},
            "score": {"type": "number", "minimum": 0, "maximum": 1},
            "tags": {"type": "array", "items": {"enum": TAGS}, "maxItems": 4},
            "active": {"type": "boolean"},
        },
        "required": ["id", "name", "score", "tags", "active"],
        "additionalProperties": false,
    });
    let schema = json!({"type": "array", "items": of_row});
    let prose = words(7, tokens * 2).join(" ");
    let counted = words(7, (tokens * 2).min(MOST_COUNTED)).join(" ") + ".";
    let array = json!(rows).to_string();
    let case = |name, constraint, text| Case { name, constraint, text };
    vec![
        case("array of objects, by a schema", Constraint::JsonSchema(schema), array),
        case("the same, as any object", Constraint::JsonObject, json!({ "rows": rows }).to_string()),
        case(
            "the same, by a grammar",
            Constraint::Grammar(Grammar::Gbnf(JSON_GRAMMAR.into())),
            json!(rows).to_string(),
        ),
        case("one long string", Constraint::JsonSchema(json!({"type": "string"})), json!(prose).to_string()),
        case("words, by an expression", Constraint::Regex("[a-z]{1,12}( [a-z]{1,12})*\\.".into()), prose + "."),
        // Which comes to no state twice.
        case(
            "the same, counted",
            Constraint::Regex(format!("[a-z]{{1,12}}( [a-z]{{1,12}}){{0,{MOST_COUNTED}}}\\.")),
            counted,
        ),
    ]
}

const TAGS: [&str; 5] = ["red", "green", "blue", "large", "small"];

/// JSON without white space.
const JSON_GRAMMAR: &str = r#"root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" (string ":" value ("," string ":" value)*)? "}"
array ::= "[" (value ("," value)*)? "]"
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" ["\\bfnrt])* "\""
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]{1,15})?
"#;

fn row(at: u64) -> Value {
    let draw = |place| rng::token_word(at, place) as usize;
    json!({
        "id": draw(0) % 100_000,
        "name": words(at, 1 + draw(1) % 4).join(" "),
        "score": (draw(2) % 1000) as f64 / 1000.0,
        "tags": TAGS[..draw(3) % 4],
        "active": draw(4) % 2 == 0,
    })
}

fn words(seed: u64, count: usize) -> Vec<&'static str> {
    const WORDS: [&str; 16] = [
        "water", "the", "of", "mountain", "and", "river", "capital", "small", "house", "in", "between", "reading",
        "language", "model", "answer", "question",
    ];
    (0..count as u32).map(|at| WORDS[rng::token_word(seed, at + 8) as usize % WORDS.len()]).collect()
}

/// Writes the text of `case` under its constraint and times each token.
fn follow(
    case: &Case,
    compiler: &GrammarCompiler,
    tokenizer: &Tokenizer,
    vocab_size: usize,
    most: usize,
) -> Result<MaskTimes> {
    let tokens = tokenizer.encode(&case.text, false)?;
    let began = Instant::now();
    let mut guide = compiler.compile(&case.constraint, Whitespace::Compact)?;
    let compile_micros = micros(began);
    let mut mask = vec![0; vocab_size.div_ceil(32)];
    let (mut masks, mut accepts) = (Vec::new(), Vec::new());
    for token in tokens.iter().take(most) {
        let began = Instant::now();
        guide.fill_mask(&mut mask)?;
        masks.push(micros(began));
        let began = Instant::now();
        guide.accept(*token)?;
        accepts.push(micros(began));
    }
    Ok(MaskTimes {
        case: case.name,
        tokens: masks.len(),
        compile_micros,
        first_masks: Spread::of(masks.iter().take(WINDOW).copied().collect()),
        last_masks: Spread::of(masks.iter().rev().take(WINDOW).copied().collect()),
        mask: Spread::of(masks),
        accept: Spread::of(accepts),
    })
}

/// How long a schema with so many properties takes, of all kinds.
fn compile(properties: usize, compiler: &GrammarCompiler) -> Result<CompileTime> {
    let kinds = [
        json!({"type": "string"}),
        json!({"type": "integer", "minimum": 0, "maximum": 1000}),
        json!({"type": "array", "items": {"type": "number"}, "maxItems": 10}),
        json!({"enum": TAGS}),
        json!({"anyOf": [{"type": "null"}, {"type": "object", "properties": {"x": {"type": "boolean"}}}]}),
    ];
    let named = (0..properties).map(|at| (format!("property_{at}"), kinds[at % kinds.len()].clone()));
    let all: serde_json::Map<_, _> = named.collect();
    let schema = json!({"type": "object", "required": all.keys().collect::<Vec<_>>(), "properties": all});
    let bytes = schema.to_string().len();
    let constraint = Constraint::JsonSchema(schema);
    let mut times = Vec::new();
    for _ in 0..7 {
        let began = Instant::now();
        compiler.compile(&constraint, Whitespace::Compact)?;
        times.push(micros(began));
    }
    Ok(CompileTime { properties, bytes, micros: Spread::of(times) })
}

fn micros(began: Instant) -> f64 {
    began.elapsed().as_nanos() as f64 / 1e3
}
