//! Tokenizers, streaming and chat templates against recorded results of tokenizers and transformers
//! (tests/golden/{chat,smollm2}), and against each other on random tokens.

use octavo::model::files::ModelFiles;
use octavo::model::text_files;
use octavo::sampling::stop::{StopMatcher, StopText};
use octavo::text::{ChatMessage, ChatTemplate, Detokenizer, RenderOptions, TextFiles, Tokenizer, TokenizerFile};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(path)
}

fn golden_json<T: serde::de::DeserializeOwned>(path: &str) -> T {
    let text = std::fs::read_to_string(golden(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn tiny_tokenizer() -> Tokenizer {
    let bytes = std::fs::read(golden("tiny-llama/tokenizer.json")).unwrap();
    Tokenizer::from_file(&TokenizerFile::Json(bytes)).unwrap()
}

/// Text files of SmolLM2, whose weights are too large to keep here. `make demo` fetches the file.
fn smollm2() -> Option<TextFiles> {
    let in_cache = || {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
        Some(cache.join("octavo/SmolLM2-135M-Instruct.Q4_1.gguf"))
    };
    let path = std::env::var_os("OCTAVO_SMOLLM2").map(PathBuf::from).or_else(in_cache)?;
    if !path.exists() {
        println!("skipped: {} is not there (`make demo` fetches it, or set OCTAVO_SMOLLM2)", path.display());
        return None;
    }
    Some(ModelFiles::open(&path).unwrap().text)
}

fn smollm2_tokenizer(files: &TextFiles) -> Tokenizer {
    Tokenizer::from_file(files.tokenizer.as_ref().expect("SmolLM2 has a vocabulary")).unwrap()
}

#[derive(Deserialize)]
struct Tokenization {
    vocab_size: usize,
    add_special_tokens: bool,
    cases: Vec<TokenizationCase>,
}

#[derive(Deserialize)]
struct TokenizationCase {
    text: String,
    ids: Vec<u32>,
    tokens: Vec<String>,
    decoded: String,
    decoded_skip_special: String,
    stream_chunks: Vec<Option<String>>,
}

fn stream(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), skip_special);
    let mut chunks: Vec<_> = ids.iter().map(|id| detokenizer.push(*id).to_owned()).collect();
    chunks.push(detokenizer.finish().to_owned());
    chunks
}

#[test]
fn smollm2_from_gguf_tokenizes_as_recorded() {
    let Some(files) = smollm2() else { return };
    let tokenizer = smollm2_tokenizer(&files);
    let golden: Tokenization = golden_json("smollm2/tokenization.json");
    assert_eq!(tokenizer.vocab_size(), golden.vocab_size);
    assert_eq!(golden.cases.len(), 65);
    for case in &golden.cases {
        let ids = tokenizer.encode(&case.text, golden.add_special_tokens).unwrap();
        assert_eq!(ids, case.ids, "{:?}", case.text);
        // The file asks for neither end, so asking changes nothing.
        assert_eq!(tokenizer.encode(&case.text, true).unwrap(), case.ids);
        let tokens: Vec<_> = ids.iter().map(|id| tokenizer.id_to_token(*id).unwrap()).collect();
        assert_eq!(tokens, case.tokens);
        assert_eq!(tokenizer.decode(&ids, false), case.decoded);
        assert_eq!(tokenizer.decode(&ids, true), case.decoded_skip_special);
    }
}

#[test]
fn smollm2_streams_the_recorded_chunks() {
    let Some(files) = smollm2() else { return };
    let tokenizer = smollm2_tokenizer(&files);
    for case in golden_json::<Tokenization>("smollm2/tokenization.json").cases {
        // The recorded decoder has no end: what it holds back at the end is not recorded.
        let mut chunks = stream(&tokenizer, &case.ids, false);
        let expected: Vec<_> = case.stream_chunks.iter().map(|chunk| chunk.clone().unwrap_or_default()).collect();
        assert_eq!(chunks.concat(), case.decoded);
        chunks.pop();
        assert_eq!(chunks, expected, "{:?}", case.text);
        assert_eq!(stream(&tokenizer, &case.ids, true).concat(), case.decoded_skip_special);
    }
}

#[test]
fn tiny_gguf_vocabularies_equal_their_tokenizer_json() {
    let json = tiny_tokenizer();
    let strings = golden_json::<Tokenization>("smollm2/tokenization.json").cases.into_iter().map(|case| case.text);
    let chats = golden_json::<Chats>("chat/chat.json").cases.into_iter().filter_map(|case| case.text);
    let texts: Vec<String> = strings.chain(chats).chain(["[PAD517]".into()]).collect();
    for file in ["tiny-llama.F16", "tiny-llama.Q8_0", "tiny-qwen2.F16", "tiny-qwen3.Q8_0"] {
        let files = ModelFiles::open(&golden(&format!("gguf/{file}.gguf"))).unwrap().text;
        let gguf = Tokenizer::from_file(files.tokenizer.as_ref().unwrap()).unwrap();
        assert_eq!(gguf.vocab_size(), json.vocab_size(), "{file}");
        for text in &texts {
            assert_eq!(gguf.encode(text, true).unwrap(), json.encode(text, true).unwrap(), "{file}: {text:?}");
        }
        for id in 0..600 {
            assert_eq!(gguf.id_to_token(id), json.id_to_token(id), "{file}");
            assert_eq!(gguf.is_special(id), json.is_special(id), "{file}: {id}");
        }
    }
}

#[test]
fn prompts_of_the_tiny_models_encode_to_their_ids() {
    let golden: Value = golden_json("tiny-llama/golden.json");
    let tokenizer = tiny_tokenizer();
    for prompt in golden["prompts"].as_array().unwrap() {
        let expected: Vec<u32> = serde_json::from_value(prompt["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(prompt["text"].as_str().unwrap(), true).unwrap(), expected);
    }
}

#[test]
fn padding_ids_decode_to_nothing() {
    let tokenizer = tiny_tokenizer();
    assert_eq!(tokenizer.vocab_size(), 515);
    assert_eq!(tokenizer.decode(&[64, 515, 65, 519, u32::MAX, 514], false), "ab<|im_end|>");
    assert_eq!(stream(&tokenizer, &[64, 515, 65, u32::MAX, 514], true), ["a", "", "b", "", "", ""]);
    assert_eq!(tokenizer.id_to_token(515), None);
    assert_eq!(tokenizer.token_to_id("<|im_end|>"), Some(514));
}

#[test]
fn long_runs_survive() {
    let tokenizer = tiny_tokenizer();
    for unit in [" ", "a", "\n", "é", "1", "!", "a b"] {
        let text = unit.repeat(100_000);
        let ids = tokenizer.encode(&text, false).unwrap();
        assert!(tokenizer.decode(&ids, false) == text, "{unit:?} came back changed");
    }
}

/// splitmix64 (Steele, Lea, Flood 2014), so that a seed says everything.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// Whole and streamed text agree; no chunk shows a broken character that the whole does not have.
fn check_stream(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) {
    let whole = tokenizer.decode(ids, skip_special);
    let chunks = stream(tokenizer, ids, skip_special);
    assert_eq!(chunks.concat(), whole, "{ids:?}");
    let broken = |text: &str| text.matches('\u{FFFD}').count();
    assert_eq!(chunks.iter().map(|chunk| broken(chunk)).sum::<usize>(), broken(&whole), "{ids:?}");
}

#[test]
fn every_pair_of_tiny_tokens_streams_as_it_decodes() {
    let tokenizer = tiny_tokenizer();
    for left in 0..516 {
        for right in 0..516 {
            check_stream(&tokenizer, &[left, right], true);
        }
    }
}

#[test]
fn every_pair_of_smollm2_tokens_that_splits_a_character_streams_as_it_decodes() {
    let Some(files) = smollm2() else { return };
    let tokenizer = smollm2_tokenizer(&files);
    let text = |id: u32| tokenizer.decode(&[id], true);
    let all = 0..tokenizer.vocab_size() as u32;
    let opens: Vec<_> = all.clone().filter(|id| text(*id).ends_with('\u{FFFD}')).collect();
    let closes: Vec<_> = all.filter(|id| text(*id).starts_with('\u{FFFD}')).collect();
    assert!(opens.len() > 100 && closes.len() > 100, "{} and {} tokens", opens.len(), closes.len());
    let mut whole_characters = 0;
    for left in &opens {
        for right in &closes {
            check_stream(&tokenizer, &[*left, *right], true);
            whole_characters += usize::from(!tokenizer.decode(&[*left, *right], true).contains('\u{FFFD}'));
        }
    }
    assert!(whole_characters > 1000, "only {whole_characters} pairs make whole characters");
}

#[test]
fn random_tokens_stream_as_they_decode_and_as_the_library_decodes() {
    let bytes = std::fs::read(golden("tiny-llama/tokenizer.json")).unwrap();
    let library = tokenizers::Tokenizer::from_bytes(&bytes).unwrap();
    let tokenizer = tiny_tokenizer();
    for seed in 0..2000 {
        let mut random = Random(seed);
        // Half of the time bytes of broken characters, the first 256 ids.
        let bound = if random.below(2) == 0 { 256 } else { 520 };
        let ids: Vec<u32> = (0..random.below(120)).map(|_| random.below(bound) as u32).collect();
        for skip_special in [false, true] {
            check_stream(&tokenizer, &ids, skip_special);
            let expected = library.decode(&ids, skip_special).unwrap();
            assert_eq!(tokenizer.decode(&ids, skip_special), expected, "seed {seed}");
        }
    }
}

#[test]
fn stops_are_found_in_streamed_text_wherever_tokens_end() {
    let tokenizer = tiny_tokenizer();
    let stops = ["é🙂".to_string(), "</end>".to_string()];
    for (text, shown, hit) in [
        ("well é🙂 more", "well ", Some(0)),
        ("well é🙃 </end", "well é🙃 </end", None),
        ("a</en</end>é🙂", "a</en", Some(1)),
    ] {
        let mut detokenizer = Detokenizer::new(tokenizer.clone(), true);
        let (mut matcher, mut out) = (StopMatcher::new(&stops, StopText::Cut), String::new());
        for id in tokenizer.encode(text, false).unwrap() {
            out.push_str(matcher.push(detokenizer.push(id)).text);
        }
        out.push_str(matcher.push(detokenizer.finish()).text);
        out.push_str(&matcher.finish());
        assert_eq!((out.as_str(), matcher.hit()), (shown, hit), "{text:?}");
    }
}

#[derive(Deserialize)]
struct Chats {
    #[serde(default)]
    bos_token: Option<String>,
    #[serde(default)]
    eos_token: Option<String>,
    cases: Vec<ChatCase>,
}

#[derive(Deserialize)]
struct ChatCase {
    #[serde(default)]
    template: String,
    name: String,
    messages: Vec<ChatMessage>,
    add_generation_prompt: bool,
    #[serde(default)]
    tools: Option<Value>,
    #[serde(default)]
    kwargs: Map<String, Value>,
    text: Option<String>,
    ids: Option<Vec<u32>>,
    error: Option<String>,
}

fn check_chat(template: &ChatTemplate, tokenizer: &Tokenizer, case: &ChatCase) {
    let label = format!("{} {} {}", case.template, case.name, case.add_generation_prompt);
    let options = RenderOptions {
        add_generation_prompt: case.add_generation_prompt,
        tools: case.tools.clone(),
        kwargs: case.kwargs.clone(),
        template: None,
    };
    let rendered = template.render(&case.messages, &options);
    if let Some(expected) = &case.error {
        let error = rendered.expect_err(&label).to_string();
        assert_eq!(error, format!("the chat template refuses these messages: {expected}"), "{label}");
        return;
    }
    let text = rendered.unwrap_or_else(|error| panic!("{label}: {error}"));
    assert_eq!(&text, case.text.as_ref().expect("text or error"), "{label}");
    assert_eq!(&tokenizer.encode(&text, false).unwrap(), case.ids.as_ref().expect("ids with text"), "{label}");
}

#[test]
fn chat_templates_render_as_transformers_does() {
    let chats: Chats = golden_json("chat/chat.json");
    let tokenizer = tiny_tokenizer();
    assert_eq!(chats.cases.len(), 172);
    for case in &chats.cases {
        let source = std::fs::read_to_string(golden(&format!("chat/{}.jinja", case.template))).unwrap();
        let template = ChatTemplate::new(&source, chats.bos_token.as_deref(), chats.eos_token.as_deref()).unwrap();
        check_chat(&template, &tokenizer, case);
    }
}

#[test]
fn smollm2_chats_render_as_transformers_does() {
    let Some(files) = smollm2() else { return };
    let chats: Chats = golden_json("smollm2/chat.json");
    let (bos, eos) = (files.bos_token.as_deref(), files.eos_token.as_deref());
    assert_eq!((bos, eos), (Some("<|im_start|>"), Some("<|im_end|>")));
    let template = ChatTemplate::from_files(&files).expect("SmolLM2 has a template").unwrap();
    let tokenizer = smollm2_tokenizer(&files);
    assert_eq!(chats.cases.len(), 24);
    for case in &chats.cases {
        check_chat(&template, &tokenizer, case);
    }
}

#[test]
fn templates_of_the_tiny_models_compile() {
    let models = [
        "tiny-gemma2",
        "tiny-gemma3",
        "tiny-gpt2",
        "tiny-llama",
        "tiny-llama3-rope",
        "tiny-mistral",
        "tiny-olmo2",
        "tiny-phi3",
        "tiny-qwen2",
        "tiny-qwen3",
        "tiny-qwen3-moe",
    ];
    for model in models {
        let files = text_files::from_folder(&golden(model)).unwrap();
        let template = ChatTemplate::from_files(&files).unwrap_or_else(|| panic!("{model} has no template")).unwrap();
        let text = template.render(&[ChatMessage::new("user", "Hello?")], &RenderOptions::default()).unwrap();
        assert!(text.contains("Hello?"), "{model}: {text:?}");
    }
}

/// A folder with these files and what it says about text.
fn folder_with(files: &[(&str, &str)]) -> TextFiles {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    text_files::from_folder(folder.path()).unwrap()
}

#[test]
fn templates_are_found_wherever_a_folder_keeps_them() {
    let in_config = ("tokenizer_config.json", r#"{"chat_template": "config"}"#);
    let named = r#"{"chat_template": [{"name": "default", "template": "config"}, {"name": "tool_use", "template": "tools"},
                    {"name": "nameless"}]}"#;
    let named = ("tokenizer_config.json", named);
    let file = ("chat_template.jinja", "file");
    let rag = ("additional_chat_templates/rag.jinja", "rag");
    let other = ("additional_chat_templates/notes.txt", "notes");
    let processor = ("chat_template.json", r#"{"chat_template": "processor"}"#);
    type Texts<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Texts, Option<&str>, Texts); 7] = [
        (&[], None, &[]),
        (&[in_config], Some("config"), &[]),
        (&[in_config, file], Some("file"), &[]),
        (&[named], Some("config"), &[("tool_use", "tools")]),
        (&[named, file, rag, other], Some("file"), &[("rag", "rag"), ("tool_use", "tools")]),
        (&[processor], Some("processor"), &[]),
        (&[in_config, processor], Some("config"), &[]),
    ];
    for (files, default, named) in cases {
        let found = folder_with(files);
        assert_eq!(found.chat_template.as_deref(), default, "{files:?}");
        let list: Vec<_> =
            found.named_templates.iter().map(|(name, source)| (name.as_str(), source.as_str())).collect();
        assert_eq!(list, named, "{files:?}");
    }
}

#[test]
fn a_template_that_is_not_text_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), [0xFF, 0xFE]).unwrap();
    let error = text_files::from_folder(folder.path()).unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja is not UTF-8"), "{error}");
}
