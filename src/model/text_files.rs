//! Collects what a model's files say about text.

use super::config::Config;
use crate::base::TokenId;
use crate::error::{Error, Result};
use crate::text::files::{GgufVocab, TextFiles, TokenizerFile};
use crate::weights::gguf::Metadata;
use serde_json::Value;
use std::path::Path;

/// Pre-tokenizers whose models expect a beginning token although their older GGUF files do not say so (Llama 3).
const PRE_WITH_BOS: [&str; 3] = ["llama3", "llama-v3", "llama-bpe"];

/// Reads `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json` and `chat_template.jinja`, as far as they
/// are there.
///
/// # Errors
/// A file cannot be read or parsed.
pub fn from_folder(folder: &Path) -> Result<TextFiles> {
    let config = Config::read(&folder.join("tokenizer_config.json"))?;
    let specials = Config::read(&folder.join("special_tokens_map.json"))?;
    let token = |key: &str| [&config, &specials].into_iter().flatten().find_map(|file| token_text(file.value(key)?));
    // A file of its own wins over the configuration, as in transformers.
    let template = match read_optional(&folder.join("chat_template.jinja"))? {
        Some(bytes) => Some(
            String::from_utf8(bytes).map_err(|_| Error::load("chat_template.jinja is not UTF-8; save it as such"))?,
        ),
        None => config.as_ref().and_then(|config| default_template(config.value("chat_template")?)),
    };
    Ok(TextFiles {
        tokenizer: read_optional(&folder.join("tokenizer.json"))?.map(TokenizerFile::Json),
        chat_template: template,
        bos_token: token("bos_token"),
        eos_token: token("eos_token"),
    })
}

/// Reads the `tokenizer.*` keys of a GGUF file.
///
/// # Errors
/// A key has another type than the format says.
pub fn from_gguf(metadata: Metadata<'_>) -> Result<TextFiles> {
    let chat_template = metadata.text("tokenizer.chat_template")?.map(str::to_owned);
    let tokens = metadata.texts("tokenizer.ggml.tokens")?;
    if tokens.is_empty() {
        return Ok(TextFiles { chat_template, ..TextFiles::default() });
    }
    let id = |name: &str| special_id(metadata, name, tokens.len());
    let flag = |name: &str, default| Ok(metadata.flag(&format!("tokenizer.ggml.{name}"))?.unwrap_or(default));
    let model = metadata.text("tokenizer.ggml.model")?.unwrap_or_default().to_owned();
    let pre = metadata.text("tokenizer.ggml.pre")?.map(str::to_owned);
    let sentence_piece = model == "llama";
    let starts_with_bos = sentence_piece || pre.as_deref().is_some_and(|pre| PRE_WITH_BOS.contains(&pre));
    let vocab = GgufVocab {
        token_types: metadata.integers("tokenizer.ggml.token_type")?,
        scores: metadata.floats("tokenizer.ggml.scores")?,
        merges: metadata.texts("tokenizer.ggml.merges")?,
        bos_token_id: id("bos_token_id")?,
        eos_token_id: id("eos_token_id")?,
        unknown_token_id: id("unknown_token_id")?,
        padding_token_id: id("padding_token_id")?,
        add_bos_token: flag("add_bos_token", starts_with_bos)?,
        add_eos_token: flag("add_eos_token", false)?,
        add_space_prefix: flag("add_space_prefix", sentence_piece)?,
        model,
        pre,
        tokens,
    };
    let text = |id: Option<TokenId>| id.map(|id| vocab.tokens[id as usize].clone());
    let (bos_token, eos_token) = (text(vocab.bos_token_id), text(vocab.eos_token_id));
    Ok(TextFiles { tokenizer: Some(TokenizerFile::Gguf(vocab)), chat_template, bos_token, eos_token })
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

/// A chat template is a text, or a list of named ones, of which `default` is the one for plain chats.
fn default_template(value: &Value) -> Option<String> {
    let named = |items: &Vec<Value>| {
        let default = items.iter().find(|item| item.get("name").and_then(Value::as_str) == Some("default"))?;
        default.get("template")?.as_str().map(str::to_owned)
    };
    value.as_str().map(str::to_owned).or_else(|| named(value.as_array()?))
}

fn read_optional(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::load(format!("cannot read {}: {error}", path.display()))),
    }
}
