//! Collects what a model's files say about text.

use super::config::Config;
use crate::base::TokenId;
use crate::error::{Error, Result};
use crate::text::files::{GgufVocab, TextFiles, TokenizerFile};
use crate::weights::gguf::Metadata;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Pre-tokenizers whose models expect a beginning token although their older GGUF files do not say so.
const PRE_WITH_BOS: [&str; 5] = ["llama3", "llama-v3", "llama-bpe", "falcon3", "tekken"];

/// Tokens that end a turn or a message, for files that name only the end of the sequence. A base model never makes them.
/// The end of a document, such as `<|endoftext|>`, is not among them: it ends an output only where the file says so.
const TURN_ENDS: [&str; 6] = ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<EOT>"];

/// Types of tokens that can be such an end: control and user-defined.
const WHOLE_TOKENS: [i32; 2] = [3, 4];

/// Reads `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json` and the chat templates, as far as they are
/// there.
///
/// # Errors
/// A file cannot be read or parsed.
pub fn from_folder(folder: &Path) -> Result<TextFiles> {
    let config = Config::read(&folder.join("tokenizer_config.json"))?;
    let specials = Config::read(&folder.join("special_tokens_map.json"))?;
    let token = |key: &str| [&config, &specials].into_iter().flatten().find_map(|file| token_text(file.value(key)?));
    let (bos_token, eos_token) = (token("bos_token"), token("eos_token"));
    let mut templates = config.as_ref().map(templates_of_config).unwrap_or_default();
    // Older multimodal models keep it beside the configuration of their processor.
    if templates.is_empty() {
        let processor = Config::read(&folder.join("chat_template.json"))?;
        templates = processor.as_ref().map(templates_of_config).unwrap_or_default();
    }
    // Files of their own win over the configuration, as in transformers.
    templates.extend(template_files(folder)?);
    let chat_template = templates.remove(DEFAULT_TEMPLATE);
    let tokenizer = read_optional(&folder.join("tokenizer.json"))?.map(TokenizerFile::Json);
    Ok(TextFiles { tokenizer, chat_template, named_templates: templates, bos_token, eos_token })
}

/// Reads the `tokenizer.*` keys of a GGUF file.
///
/// # Errors
/// A key has another type than the format says.
pub fn from_gguf(metadata: Metadata<'_>) -> Result<TextFiles> {
    let chat_template = metadata.text("tokenizer.chat_template")?.map(str::to_owned);
    let mut named_templates = BTreeMap::new();
    for name in metadata.texts("tokenizer.chat_templates")? {
        if let Some(source) = metadata.text(&format!("tokenizer.chat_template.{name}"))? {
            named_templates.insert(name, source.to_owned());
        }
    }
    let vocab = vocab(metadata)?;
    let text = |id: Option<TokenId>| Some(vocab.as_ref()?.tokens[id? as usize].clone());
    let bos_token = text(vocab.as_ref().and_then(|vocab| vocab.bos_token_id));
    let eos_token = text(vocab.as_ref().and_then(|vocab| vocab.eos_token_id));
    Ok(TextFiles {
        tokenizer: vocab.map(|vocab| TokenizerFile::Gguf(Box::new(vocab))),
        chat_template,
        named_templates,
        bos_token,
        eos_token,
    })
}

/// `None` for a file without tokens.
fn vocab(metadata: Metadata<'_>) -> Result<Option<GgufVocab>> {
    let tokens = metadata.texts("tokenizer.ggml.tokens")?;
    if tokens.is_empty() {
        return Ok(None);
    }
    let id = |name: &str| special_id(metadata, name, tokens.len());
    let flag = |name: &str, default| Ok(metadata.flag(&format!("tokenizer.ggml.{name}"))?.unwrap_or(default));
    let model = metadata.text("tokenizer.ggml.model")?.unwrap_or_default().to_owned();
    let pre = metadata.text("tokenizer.ggml.pre")?.map(str::to_owned);
    let pieces = ["llama", "t5"].contains(&model.as_str());
    let starts_with_bos = model == "llama" || pre.as_deref().is_some_and(|pre| PRE_WITH_BOS.contains(&pre));
    let token_types = metadata.integers("tokenizer.ggml.token_type")?;
    Ok(Some(GgufVocab {
        end_token_ids: end_tokens(metadata, &tokens, &token_types)?,
        token_types,
        scores: metadata.floats("tokenizer.ggml.scores")?,
        merges: metadata.texts("tokenizer.ggml.merges")?,
        bos_token_id: id("bos_token_id")?,
        eos_token_id: id("eos_token_id")?,
        unknown_token_id: id("unknown_token_id")?,
        padding_token_id: id("padding_token_id")?,
        add_bos_token: flag("add_bos_token", starts_with_bos)?,
        add_eos_token: flag("add_eos_token", model == "t5")?,
        add_space_prefix: flag("add_space_prefix", pieces)?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces", false)?,
        precompiled_charsmap: metadata.bytes("tokenizer.ggml.precompiled_charsmap")?.to_owned(),
        // The format has no place for it: known of one family.
        control_tokens_strip_right: model == "llama" && metadata.text("general.architecture")? == Some("phi3"),
        model,
        pre,
        tokens,
    }))
}

/// The end of the sequence, of a turn and of a message: those named, then those known by their text.
fn end_tokens(metadata: Metadata<'_>, tokens: &[String], types: &[i32]) -> Result<Vec<TokenId>> {
    let mut ids = Vec::new();
    let mut add = |id: TokenId| {
        if !ids.contains(&id) {
            ids.push(id);
        }
    };
    for name in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        special_id(metadata, name, tokens.len())?.into_iter().for_each(&mut add);
    }
    for (id, token) in (0..).zip(tokens) {
        let whole = types.get(id as usize).is_some_and(|kind| WHOLE_TOKENS.contains(kind));
        if whole && TURN_ENDS.contains(&token.as_str()) {
            add(id);
        }
    }
    Ok(ids)
}

/// `tokenizer.ggml.NAME`; ids beyond `limit` are some writers' way to say "none".
pub fn special_id(metadata: Metadata<'_>, name: &str, limit: usize) -> Result<Option<TokenId>> {
    let id = metadata.unsigned(&format!("tokenizer.ggml.{name}"))?;
    Ok(id.and_then(|id| TokenId::try_from(id).ok()).filter(|id| (*id as usize) < limit))
}

/// A special token is a text, or an object with its text and flags.
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// The name of the template for plain chats where several are named.
const DEFAULT_TEMPLATE: &str = "default";

/// A configuration's chat template is a text, or a list of named ones.
fn templates_of_config(config: &Config) -> BTreeMap<String, String> {
    let named = |item: &Value| {
        let part = |key| item.get(key)?.as_str().map(str::to_owned);
        Some((part("name")?, part("template")?))
    };
    match config.value("chat_template") {
        Some(Value::String(source)) => BTreeMap::from([(DEFAULT_TEMPLATE.to_owned(), source.clone())]),
        Some(Value::Array(items)) => items.iter().filter_map(named).collect(),
        _ => BTreeMap::new(),
    }
}

/// `chat_template.jinja` and `additional_chat_templates/NAME.jinja`.
fn template_files(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut templates = BTreeMap::new();
    let mut read = |name: &str, path: &Path| {
        let Some(bytes) = read_optional(path)? else { return Ok(()) };
        let source = String::from_utf8(bytes)
            .map_err(|_| Error::load(format!("{} is not UTF-8; save it as such", path.display())))?;
        templates.insert(name.to_owned(), source);
        Ok(())
    };
    read(DEFAULT_TEMPLATE, &folder.join("chat_template.jinja"))?;
    let more = folder.join("additional_chat_templates");
    let entries = match std::fs::read_dir(&more) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(templates),
        Err(error) => return Err(Error::load(format!("cannot list {}: {error}", more.display()))),
    };
    for entry in entries {
        let path = entry.map_err(|error| Error::load(format!("cannot list {}: {error}", more.display())))?.path();
        if let (Some("jinja"), Some(name)) = (path.extension().and_then(|e| e.to_str()), path.file_stem()) {
            read(&name.to_string_lossy(), &path)?;
        }
    }
    Ok(templates)
}

fn read_optional(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::load(format!("cannot read {}: {error}", path.display()))),
    }
}
