//! From a constraint to a guide at the beginning of an output.

use super::guide::{Guide, first_line};
use super::limits::{COMPILE_STACK_BYTES, check_source};
use super::vocabulary::Vocabulary;
use super::{choice, gbnf, lark, regex, schema};
use crate::base::TokenId;
use crate::error::{Error, Result};
use crate::sampling::guide::{GuideCompiler, TokenGuide};
use crate::sampling::{Constraint, Grammar, Whitespace};
use crate::text::Tokenizer;
use llguidance::api::TopLevelGrammar;
use std::sync::{Arc, OnceLock};

/// Compiles constraints for the vocabulary of one model. Shared by all requests; what it prepares, it prepares once.
pub struct GrammarCompiler {
    tokenizer: Tokenizer,
    end_tokens: Vec<TokenId>,
    vocab_size: usize,
    vocabulary: OnceLock<Result<Arc<Vocabulary>>>,
}

impl GrammarCompiler {
    /// A compiler for a model whose logits are `vocab_size` values and which ends an output with any of `end_tokens`.
    /// Cheap: the vocabulary is prepared when the first constraint comes.
    pub fn new(tokenizer: Tokenizer, end_tokens: Vec<TokenId>, vocab_size: usize) -> Self {
        Self { tokenizer, end_tokens, vocab_size, vocabulary: OnceLock::new() }
    }

    /// Prepares the vocabulary now: a tenth of a second for 50,000 tokens. Without it, the first constraint waits as long.
    ///
    /// # Errors
    /// The library cannot take it, which is a defect.
    pub fn warm_up(&self) -> Result<()> {
        self.vocabulary().map(|_| ())
    }

    fn vocabulary(&self) -> Result<Arc<Vocabulary>> {
        let build =
            || guarded("the vocabulary", || Vocabulary::new(&self.tokenizer, &self.end_tokens, self.vocab_size));
        self.vocabulary.get_or_init(|| build().map(Arc::new)).clone()
    }

    fn build(&self, constraint: &Constraint, whitespace: Whitespace) -> Result<Guide> {
        let vocabulary = self.vocabulary()?;
        let grammar = grammar(constraint, whitespace)?;
        let parser = vocabulary.factory.create_parser(grammar).map_err(|error| refusal(&error))?;
        let mut guide = Guide::new(Arc::clone(&vocabulary), parser);
        if matches!(constraint, Constraint::Regex(_) | Constraint::Choice(_)) {
            guide = guide.with_kept_masks();
        }
        // A grammar that nothing satisfies shows here, before the request takes a place.
        let mut mask = vec![0; self.vocab_size.div_ceil(32)];
        if !guide.is_done() {
            guide.fill_mask(&mut mask)?;
        }
        Ok(guide)
    }
}

impl GuideCompiler for GrammarCompiler {
    fn compile(&self, constraint: &Constraint, whitespace: Whitespace) -> Result<Box<dyn TokenGuide>> {
        let compile = || guarded("the grammar", || self.build(constraint, whitespace));
        // Grammars are recursive, and so is every compiler of them; whoever calls may have a small stack.
        let outcome = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("octavo-grammar".into()).stack_size(COMPILE_STACK_BYTES);
            let thread = thread.spawn_scoped(scope, compile);
            let thread = thread.map_err(|error| Error::memory(format!("no thread to compile a grammar: {error}")))?;
            thread.join().map_err(|_| Error::bug("compiling the grammar panicked"))?
        });
        match outcome {
            Ok(guide) => Ok(Box::new(guide)),
            Err(error) => Err(error.context(constraint.name())),
        }
    }
}

/// What llguidance compiles.
fn grammar(constraint: &Constraint, whitespace: Whitespace) -> Result<TopLevelGrammar> {
    Ok(match constraint {
        Constraint::JsonSchema(value) => {
            let schema = schema::parse(value)?;
            TopLevelGrammar::from_json_schema(schema::prepare(&schema, whitespace)?)
        }
        Constraint::JsonObject => {
            TopLevelGrammar::from_json_schema(schema::prepare(&schema::any_object(), whitespace)?)
        }
        Constraint::Regex(expression) => {
            check_source("the expression", expression.len())?;
            regex::check(expression)?;
            // A group, so that an empty expression is one too.
            TopLevelGrammar::from_regex(&format!("(?:{expression})"))
        }
        Constraint::Choice(choices) => TopLevelGrammar::from_regex(&choice::expression(choices)?),
        Constraint::Grammar(Grammar::Lark(source)) => TopLevelGrammar::from_lark(lark::prepare(source, whitespace)?),
        Constraint::Grammar(Grammar::Gbnf(source)) => TopLevelGrammar::from_lark(gbnf::to_lark(source)?),
    })
}

/// Why the library refuses a grammar, in our words where its own would mislead.
fn refusal(error: &dyn std::fmt::Display) -> Error {
    let text = error.to_string();
    if text.contains("oneOf constraints are not supported") {
        return Error::config("oneOf is supported only where its alternatives plainly exclude each other; write anyOf");
    }
    if text.starts_with("schema too large") {
        return Error::config("the schema has more parts than the library's limit of 50000; simplify it");
    }
    if text.contains("initial lexer configuration (grammar) too big")
        || text.contains("grammar size (number of symbols)")
    {
        return Error::config(format!("{}; simplify it", first_line(&text)));
    }
    // Its errors go on with the place in a grammar, which only helps who wrote that grammar.
    Error::config(first_line(&text))
}

/// The last line of defence against foreign input: a panic of the library becomes an error.
fn guarded<T>(what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    // Unwind safe: what the call was building is dropped, and what it shares does not change.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(Error::bug(format!("llguidance cannot deal with {what}; please report it"))))
}
