//! Vocabularies, and a sampler that draws from masks.

use octavo::base::{TokenId, rng};
use octavo::error::Result;
use octavo::model::text_files;
use octavo::sampling::guide::{GuideCompiler, TokenGuide};
use octavo::sampling::{Constraint, Whitespace};
use octavo::structured::GrammarCompiler;
use octavo::text::{Tokenizer, TokenizerFile};
use octavo::weights::FileBytes;
use octavo::weights::gguf::GgufFile;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A tokenizer with its compiler.
pub struct Vocabulary {
    pub name: &'static str,
    pub tokenizer: Tokenizer,
    pub compiler: GrammarCompiler,
    pub end_tokens: Vec<TokenId>,
    pub size: usize,
    /// Tokens that bring an output nearer to its end: quotes and closing brackets.
    closing: Vec<TokenId>,
}

/// The model's output has a tail that the tokenizer does not know, as padded ones do.
const PADDING: usize = 61;

pub fn tiny() -> &'static Vocabulary {
    static TINY: OnceLock<Vocabulary> = OnceLock::new();
    TINY.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny-llama/tokenizer.json");
        Vocabulary::new("tiny", &TokenizerFile::Json(std::fs::read(path).unwrap()), &["<|endoftext|>", "<|im_end|>"])
    })
}

/// A SentencePiece vocabulary: words begin with their space, and bytes without a piece have tokens of their own.
pub fn sentencepiece() -> &'static Vocabulary {
    static SENTENCEPIECE: OnceLock<Vocabulary> = OnceLock::new();
    SENTENCEPIECE.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/text/llama-style.gguf");
        Vocabulary::new("SentencePiece", &gguf(&path), &["</s>"])
    })
}

fn gguf(path: &Path) -> TokenizerFile {
    let file = GgufFile::new(FileBytes::map(path).unwrap()).unwrap();
    text_files::from_gguf(file.metadata()).unwrap().tokenizer.unwrap()
}

/// `None` where the file is not.
pub fn smollm2() -> Option<&'static Vocabulary> {
    static SMOLLM2: OnceLock<Option<Vocabulary>> = OnceLock::new();
    let open = || {
        let own = std::env::var_os("OCTAVO_SMOLLM2").map(PathBuf::from);
        let usual = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
            .map(|cache| cache.join("octavo/SmolLM2-135M-Instruct.Q4_1.gguf"));
        let Some(path) = own.or_else(|| usual.filter(|path| path.exists())) else {
            println!("SmolLM2 is not here, so only the tiny vocabulary is tested; `make demo` fetches it");
            return None;
        };
        Some(Vocabulary::new("SmolLM2", &gguf(&path), &["<|im_end|>"]))
    };
    SMOLLM2.get_or_init(open).as_ref()
}

/// Those that are here.
pub fn vocabularies() -> impl Iterator<Item = &'static Vocabulary> {
    [tiny(), sentencepiece()].into_iter().chain(smollm2())
}

impl Vocabulary {
    fn new(name: &'static str, file: &TokenizerFile, ends: &[&str]) -> Self {
        let tokenizer = Tokenizer::from_file(file).unwrap();
        let size = tokenizer.vocab_size() + PADDING;
        let end_tokens: Vec<_> = ends.iter().map(|end| tokenizer.token_to_id(end).unwrap()).collect();
        let closes = |id: &TokenId| matches!(tokenizer.token_bytes(*id).first(), Some(b'"' | b']' | b'}'));
        let closing = (0..tokenizer.vocab_size() as TokenId).filter(closes).chain(end_tokens.clone()).collect();
        let compiler = GrammarCompiler::new(tokenizer.clone(), end_tokens.clone(), size);
        Self { name, tokenizer, compiler, end_tokens, size, closing }
    }

    pub fn compile(&self, constraint: &Constraint, whitespace: Whitespace) -> Result<Box<dyn TokenGuide>> {
        self.compiler.compile(constraint, whitespace)
    }

    pub fn mask(&self) -> Vec<u32> {
        vec![0; self.size.div_ceil(32)]
    }

    /// The tokens that a mask allows.
    pub fn allowed(&self, mask: &[u32]) -> Vec<TokenId> {
        (0..mask.len() as TokenId * 32).filter(|id| is_set(mask, *id)).collect()
    }

    /// Draws a whole output. The end comes by chance where it may, soon after the hundredth token, and surely when
    /// nothing else may follow.
    ///
    /// # Errors
    /// `most` tokens did not suffice: the output so far.
    pub fn draw(&self, guide: &mut dyn TokenGuide, seed: u64, most: usize) -> Result<Output, Output> {
        let mut mask = self.mask();
        let mut output = Output { tokens: Vec::new(), text: String::new() };
        let finish = |mut output: Output| {
            output.text = self.tokenizer.decode(&output.tokens, false);
            output
        };
        for position in 0..most {
            if guide.is_done() {
                return Ok(finish(output));
            }
            guide.fill_mask(&mut mask).unwrap_or_else(|error| {
                panic!("{error} in {:?} with seed {seed}", self.tokenizer.decode(&output.tokens, false))
            });
            let token = self.pick(&mask, seed, position);
            assert!((token as usize) < self.tokenizer.vocab_size(), "padding was allowed");
            guide.accept(token).unwrap();
            if self.end_tokens.contains(&token) {
                assert!(guide.is_done());
                return Ok(finish(output));
            }
            output.tokens.push(token);
        }
        Err(finish(output))
    }

    fn pick(&self, mask: &[u32], seed: u64, position: usize) -> TokenId {
        let mut draws = 4 * position as u32;
        let mut random = |bound: usize| {
            draws += 1;
            rng::token_word(seed, draws) as usize % bound
        };
        let close_one_in = if position < 100 { 4 } else { 2 };
        if random(close_one_in) == 0 {
            let closing: Vec<_> = self.closing.iter().filter(|id| is_set(mask, **id)).collect();
            if !closing.is_empty() {
                return *closing[random(closing.len())];
            }
        }
        let mut allowed = self.allowed(mask);
        if position >= 100 {
            // Every byte as often as every other, or a full stop would never come among 49,152 tokens.
            let first = |id: &TokenId| self.tokenizer.token_bytes(*id).first().copied();
            let firsts: std::collections::BTreeSet<_> = allowed.iter().map(first).collect();
            let chosen = *firsts.iter().nth(random(firsts.len())).unwrap();
            allowed.retain(|id| first(id) == chosen);
        }
        allowed[random(allowed.len())]
    }
}

pub fn is_set(mask: &[u32], id: TokenId) -> bool {
    mask[id as usize / 32] >> (id % 32) & 1 == 1
}

/// What was drawn, without the end token.
pub struct Output {
    pub tokens: Vec<TokenId>,
    pub text: String,
}
