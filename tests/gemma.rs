//! Gemma 3 270M from its GGUF file (Q4_K_M): a vocabulary of 262,144 pieces, mixed K-quants, alternating windows. The file
//! is not part of the repository: `make test-gemma` fetches it; without it these tests say so and pass over.

#[path = "common/golden.rs"]
mod golden;

use octavo::config::EngineOptions;
use octavo::engine::Prompt;
use octavo::model::files::ModelFiles;
use octavo::text::{Detokenizer, Tokenizer};
use octavo::{Llm, SamplingParams};
use std::path::PathBuf;

fn model() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    let usual = cache.map(|cache| cache.join("octavo/gemma3-270m-q4_k_m.gguf"));
    let path = std::env::var_os("OCTAVO_GEMMA3").map(PathBuf::from).or(usual)?;
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not there; `make test-gemma` fetches it, or set OCTAVO_GEMMA3", path.display());
    None
}

fn open(path: &std::path::Path) -> Llm {
    let options = EngineOptions {
        max_num_seqs: 4,
        max_num_batched_tokens: 256,
        max_model_len: Some(2048),
        num_kv_blocks: Some(160),
        ..EngineOptions::default()
    };
    Llm::open(path.to_str().expect("a path in UTF-8"), options).unwrap()
}

/// A page of English, the one whose likelihood is measured.
fn page() -> String {
    golden::json("smollm2/perplexity.json")["text"].as_str().unwrap().to_owned()
}

#[test]
fn tokens_are_those_of_another_implementation() {
    let Some(path) = model() else { return };
    let files = ModelFiles::open(&path).unwrap();
    assert_eq!((files.spec.vocab_size, files.end_tokens.as_slice()), (262_144, &[1, 106][..]));
    let tokenizer = Tokenizer::from_file(files.text.tokenizer.as_ref().unwrap()).unwrap();
    let cases = golden::json("text/gemma3.json");
    for case in cases["cases"].as_array().unwrap() {
        let (text, expected) = (case["text"].as_str().unwrap(), golden::ids(&case["ids"]));
        assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{text:?}");
        // The one character that does not come back is the one that spells spaces.
        if !text.contains('▁') {
            assert_eq!(tokenizer.decode(&expected, false), text);
        }
    }
    let page = page();
    let ids = tokenizer.encode(&page, true).unwrap();
    assert_eq!(ids[0], 2, "the beginning of a text");
    assert_eq!(tokenizer.decode(&ids, true), page);
    let mut stream = Detokenizer::new(tokenizer, true);
    let mut streamed: String = ids.iter().map(|id| stream.push(*id).to_owned()).collect();
    streamed.push_str(stream.finish());
    assert_eq!(streamed, page);
    println!("{} bytes are {} tokens", page.len(), ids.len());
}

#[test]
fn greedy_text_is_english_and_repeats() {
    let Some(path) = model() else { return };
    let llm = open(&path);
    let tokenizer = llm.engine().tokenizer().expect("the file has a vocabulary").clone();
    let prompts = [
        "The capital of France is",
        "Once upon a time, there was a little girl who",
        "A lighthouse is a tall building near the sea. At night, its lamp",
    ];
    let ask = || llm.generate(prompts, SamplingParams::greedy(24)).unwrap();
    let (outputs, again) = (ask(), ask());
    for ((prompt, output), repeated) in prompts.iter().zip(&outputs).zip(&again) {
        println!("{prompt}|{}", output.text);
        assert_eq!((&output.text, &output.token_ids), (&repeated.text, &repeated.token_ids));
        // Alone it is the same text as beside the others.
        let alone = llm.generate([*prompt], SamplingParams::greedy(24)).unwrap().remove(0);
        assert_eq!(alone.token_ids, output.token_ids);
        assert!(!output.text.contains('\u{FFFD}'), "{:?}", output.text);
        let ids = output.token_ids.iter().filter(|id| !llm.files().end_tokens.contains(id));
        assert!(ids.clone().all(|id| !tokenizer.is_special(*id)), "{:?}", output.token_ids);
        // A model of this size repeats itself, but in words: a broken one does not write them.
        let words: Vec<_> = output.text.split_whitespace().collect();
        let is_word =
            |word: &&&str| word.trim_matches(|c: char| c.is_ascii_punctuation()).chars().all(char::is_alphabetic);
        let count = words.iter().filter(is_word).count();
        assert!(words.len() >= 12 && count * 10 >= words.len() * 8, "{words:?}");
        let common = ["the", "of", "a", "is", "to", "and", "in", "her", "she", "it"];
        assert!(words.iter().filter(|word| common.contains(&word.to_lowercase().as_str())).count() >= 3, "{words:?}");
    }
}

/// Mean negative log-likelihood of the page's first tokens by llama.cpp's CPU backend (npm node-llama-cpp 3.21.1) on the
/// same file, and how many tokens that is. It rounds activations to eight bits, hence a tolerance of one in a hundred.
const LLAMA_CPP: (f64, usize) = (3.269_979, 968);

#[test]
fn likelihood_of_a_page_is_that_of_another_implementation() {
    let Some(path) = model() else { return };
    let llm = open(&path);
    let mut ids = llm.engine().tokenizer().expect("the file has a vocabulary").encode(&page(), true).unwrap();
    let (expected, count) = LLAMA_CPP;
    assert!(ids.len() > count);
    // The beginning of the text is not scored.
    ids.truncate(count + 1);
    let logprobs = llm.score(Prompt::from(ids)).unwrap();
    assert_eq!(logprobs.len(), count);
    let mean = -logprobs.iter().sum::<f64>() / count as f64;
    println!("mean NLL {mean:.6} of {count} tokens; llama.cpp on the same file {expected:.6}");
    assert!((mean - expected).abs() < 0.01 * expected, "mean NLL {mean}, llama.cpp {expected}");
}
