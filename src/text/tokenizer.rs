//! Encoding and decoding with a model's own vocabulary. Encoding is the `tokenizers` crate's; decoding goes through a
//! table of bytes (`pieces`), the same for whole outputs and for streams.

use super::files::TokenizerFile;
use super::gguf_vocab;
use super::pieces::PieceTable;
use crate::base::TokenId;
use crate::error::{Error, Result};
use std::sync::Arc;

/// A vocabulary with its rules. Clones share it.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    encoder: tokenizers::Tokenizer,
    pieces: PieceTable,
    /// Put around encoded text on request, besides what the encoder's own post-processor does.
    prefix: Option<TokenId>,
    suffix: Option<TokenId>,
}

impl Tokenizer {
    /// Builds the tokenizer that a model came with.
    ///
    /// # Errors
    /// Malformed vocabularies, and kinds that are not supported (named, with what is).
    pub fn from_file(file: &TokenizerFile) -> Result<Self> {
        let inner = match file {
            TokenizerFile::Json(bytes) => Inner::from_json(bytes)?,
            TokenizerFile::Gguf(vocab) => {
                let encoder = guarded(|| Ok(gguf_vocab::build(vocab)))
                    .map_err(|error| Error::load(format!("the GGUF vocabulary cannot be used: {error}")))??;
                let pieces = PieceTable::new(&encoder)?;
                let prefix = vocab.bos_token_id.filter(|_| vocab.add_bos_token);
                let suffix = vocab.eos_token_id.filter(|_| vocab.add_eos_token);
                Inner { encoder, pieces, prefix, suffix }
            }
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Token ids of `text`. The text of special tokens becomes those tokens. With `add_special`, the beginning and end
    /// tokens are added if the model wants them; rendered chats already hold them.
    ///
    /// # Errors
    /// Text that the vocabulary cannot express (only vocabularies without bytes).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>> {
        let encoding = guarded(|| self.inner.encoder.encode_fast(text, add_special));
        let encoding = encoding.map_err(|error| Error::config(format!("this text cannot be tokenized: {error}")))?;
        if !add_special || (self.inner.prefix.is_none() && self.inner.suffix.is_none()) {
            return Ok(encoding.get_ids().to_vec());
        }
        let ids = encoding.get_ids().iter().copied();
        Ok(self.inner.prefix.into_iter().chain(ids).chain(self.inner.suffix).collect())
    }

    /// Text of `ids`. Ids that the tokenizer does not know (padded vocabularies) give nothing, bytes that are not UTF-8
    /// give U+FFFD, one for each maximal invalid part. With `skip_special`, special tokens give nothing.
    pub fn decode(&self, ids: &[TokenId], skip_special: bool) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        let mut start = self.inner.pieces.start();
        for id in ids {
            self.inner.pieces.append(*id, skip_special, &mut start, &mut bytes);
        }
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    /// One more than the largest known id. A model's embedding may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.inner.pieces.len()
    }

    /// The id of a token given as it stands in the vocabulary, such as `<|im_end|>` or `Ġthe`.
    pub fn token_to_id(&self, token: &str) -> Option<TokenId> {
        self.inner.encoder.token_to_id(token)
    }

    /// The token as it stands in the vocabulary; `None` for unknown ids.
    pub fn id_to_token(&self, id: TokenId) -> Option<String> {
        self.inner.encoder.id_to_token(id)
    }

    /// Whether `id` is a special token, which `skip_special` leaves out of text.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.inner.pieces.is_special(id)
    }

    /// The bytes that `id` adds to a text, before what is dropped at its beginning; empty for unknown ids.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.inner.pieces.bytes(id)
    }

    pub(super) fn pieces(&self) -> &PieceTable {
        &self.inner.pieces
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

impl Inner {
    fn from_json(bytes: &[u8]) -> Result<Self> {
        let mut encoder = guarded(|| tokenizers::Tokenizer::from_bytes(bytes))
            .map_err(|error| Error::load(format!("tokenizer.json cannot be read: {error}; fetch the file again")))?;
        // Files often carry the padding and truncation of their last training run. Prompts are never cut silently.
        encoder.with_padding(None);
        encoder.with_truncation(None).map_err(|error| Error::bug(format!("truncation stays on: {error}")))?;
        let pieces = PieceTable::new(&encoder)?;
        Ok(Self { encoder, pieces, prefix: None, suffix: None })
    }
}

/// Runs a call of the library. Some rules that contradict the vocabulary make it panic (a `continuing_subword_prefix`
/// that merges do not carry, for one), and a model file must not bring down an engine that serves others.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    // Unwind safe: on a panic nothing of the new tokenizer is kept, and a shared one only has a cache that may be stale
    // by a missing entry.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    outcome.unwrap_or_else(|_| Err("its rules contradict its vocabulary, the file is damaged".into()))
}

#[cfg(test)]
mod tests {
    use super::super::Detokenizer;
    use super::*;
    use crate::base::rng;
    use serde_json::{Value, json};

    fn json_file(value: serde_json::Value) -> TokenizerFile {
        TokenizerFile::Json(value.to_string().into_bytes())
    }

    #[test]
    fn a_broken_file_is_refused_by_name() {
        let error = Tokenizer::from_file(&TokenizerFile::Json(b"{\"model\": 3".to_vec())).unwrap_err();
        assert!(error.to_string().starts_with("tokenizer.json cannot be read"), "{error}");
    }

    #[test]
    fn stored_truncation_and_padding_are_not_applied() {
        let file = json_file(json!({
            "version": "1.0", "added_tokens": [],
            "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                        "pad_type_id": 0, "pad_token": "a"},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []},
        }));
        let tokenizer = Tokenizer::from_file(&file).unwrap();
        assert_eq!(tokenizer.encode("abc", true).unwrap(), [0, 1, 2]);
        assert_eq!(tokenizer.vocab_size(), 3);
    }

    /// Puts an unlikely value somewhere into `value`.
    fn damage(value: &mut Value, random: &mut impl FnMut(usize) -> usize) {
        let deeper = random(8) > 0;
        match value {
            Value::Array(items) if deeper && !items.is_empty() => {
                let place = random(items.len());
                damage(&mut items[place], random);
            }
            Value::Object(entries) if deeper && !entries.is_empty() => {
                let place = random(entries.len());
                damage(entries.values_mut().nth(place).unwrap(), random);
            }
            _ => {
                let unlikely = json!([null, -1, 0, 7, u32::MAX, 1e300, "", "a", "é", "(", [], [["a", "b"]], {}, true]);
                *value = unlikely[random(14)].clone();
            }
        }
    }

    #[test]
    fn damaged_tokenizer_files_are_refused_or_work() {
        let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let token = |id: u32, content: &str, special: bool| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": special})
        };
        let pattern =
            json!({"type": "Split", "pattern": {"Regex": "\\p{L}+"}, "behavior": "Isolated", "invert": false});
        let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let template = json!({"type": "TemplateProcessing", "pair": [],
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}});
        let bytes = json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [token(4, "<s>", true), token(5, "<t>", false)],
            "normalizer": {"type": "NFC"}, "post_processor": template, "decoder": level,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [pattern, level]},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                      "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": [["a", "b"]]},
        });
        let mut pieces = bytes.clone();
        pieces["decoder"] =
            json!({"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]});
        pieces["normalizer"] =
            json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]});
        pieces["pre_tokenizer"] = Value::Null;
        for file in [&bytes, &pieces] {
            let tokenizer = Tokenizer::from_file(&TokenizerFile::Json(file.to_string().into_bytes())).unwrap();
            assert_eq!(tokenizer.encode("ab<t>", true).unwrap(), [4, 2, 5], "the whole file must work");
        }
        let mut refused = 0;
        for seed in 0..6000 {
            let mut draws = 0;
            let mut random = |bound: usize| {
                draws += 1;
                rng::token_word(seed, draws) as usize % bound
            };
            let mut file = if seed % 2 == 0 { bytes.clone() } else { pieces.clone() };
            damage(&mut file, &mut random);
            println!("seed {seed}: {file}");
            match Tokenizer::from_file(&TokenizerFile::Json(file.to_string().into_bytes())) {
                Err(_) => refused += 1,
                // A broken rule may make a text impossible to encode, which is an error and no panic.
                Ok(tokenizer) => match tokenizer.encode("ab <s>é<t> b", true) {
                    Ok(ids) => {
                        let mut stream = Detokenizer::new(tokenizer.clone(), false);
                        let mut text: String = ids.iter().map(|id| stream.push(*id).to_owned()).collect();
                        text.push_str(stream.finish());
                        assert_eq!(text, tokenizer.decode(&ids, false));
                    }
                    Err(error) => assert!(error.to_string().contains("cannot be tokenized")),
                },
            }
        }
        assert!((1000..5700).contains(&refused), "{refused} of 6000 refused: one side is hardly tested");
    }
}
