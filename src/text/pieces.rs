//! The bytes that each token stands for. Byte-level and SentencePiece-like decoders come down to such a table plus one
//! rule about the first space; other kinds are refused when the tokenizer is opened.

use crate::base::TokenId;
use crate::error::{Error, Result};
use serde_json::Value;
use std::collections::HashMap;
use tokenizers::decoders::DecoderWrapper;

/// Bytes of every token id, end to end, with special tokens marked.
pub(super) struct PieceTable {
    bytes: Vec<u8>,
    /// `bytes[ends[id - 1]..ends[id]]` is token `id`.
    ends: Vec<u32>,
    special: Vec<bool>,
    leading: LeadingSpace,
}

/// What happens to spaces at the beginning of a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LeadingSpace {
    /// Nothing.
    Keep,
    /// Up to so many are dropped.
    DropUpTo(usize),
    /// All that the first token holds are dropped.
    DropInFirstToken,
}

/// How far into the leading spaces one text is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    may_drop: usize,
}

impl Start {
    /// Whether no more spaces can be dropped.
    pub(super) fn is_over(self) -> bool {
        self.may_drop == 0
    }
}

impl PieceTable {
    /// The table of `tokenizer`.
    ///
    /// # Errors
    /// Decoders other than the two families, by name.
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer) -> Result<Self> {
        let rules = Rules::of(tokenizer.get_decoder())?;
        let vocab = tokenizer.get_vocab(true);
        let size = vocab.values().max().map_or(0, |max| *max as usize + 1);
        // A sparse vocabulary is legal, one that spreads over the whole u32 range is a lie that would fill the memory.
        if size > vocab.len().saturating_mul(MOST_IDS_PER_TOKEN).saturating_add(MOST_IDS_PER_TOKEN) {
            let count = vocab.len();
            return Err(Error::load(format!("the tokenizer has {count} tokens but ids up to {size}; it is damaged")));
        }
        let specials = tokenizer.get_added_tokens_decoder();
        let (mut bytes, mut ends, mut special) = (Vec::new(), Vec::with_capacity(size), Vec::with_capacity(size));
        for id in 0..size as TokenId {
            if let Some(token) = tokenizer.id_to_token(id) {
                rules.append_bytes(&token, &mut bytes);
            }
            let end = u32::try_from(bytes.len());
            ends.push(end.map_err(|_| Error::load("the texts of the tokenizer exceed 4 GiB; it is damaged"))?);
            special.push(specials.get(&id).is_some_and(|token| token.special));
        }
        Ok(Self { bytes, ends, special, leading: rules.leading })
    }

    /// Known ids are below this.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn is_special(&self, id: TokenId) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// What `id` stands for; empty for unknown ids.
    pub(super) fn bytes(&self, id: TokenId) -> &[u8] {
        let index = id as usize;
        let Some(end) = self.ends.get(index) else {
            return &[];
        };
        let begin = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[begin as usize..*end as usize]
    }

    /// The state of a text before its first token.
    pub(super) fn start(&self) -> Start {
        let may_drop = match self.leading {
            LeadingSpace::Keep => 0,
            LeadingSpace::DropUpTo(count) => count,
            LeadingSpace::DropInFirstToken => 1,
        };
        Start { may_drop }
    }

    /// Appends what `id` adds to a text.
    pub(super) fn append(&self, id: TokenId, skip_special: bool, start: &mut Start, out: &mut Vec<u8>) {
        let index = id as usize;
        if index >= self.ends.len() || (skip_special && self.special[index]) {
            return;
        }
        let mut piece = self.bytes(id);
        if start.is_over() {
            return out.extend_from_slice(piece);
        }
        if self.leading == LeadingSpace::DropInFirstToken {
            start.may_drop = 0;
            return out.extend(piece.iter().filter(|byte| **byte != b' '));
        }
        while start.may_drop > 0 && piece.first() == Some(&b' ') {
            piece = &piece[1..];
            start.may_drop -= 1;
        }
        if !piece.is_empty() {
            start.may_drop = 0;
        }
        out.extend_from_slice(piece);
    }
}

/// Published vocabularies have no gaps at all; this leaves room for odd ones.
const MOST_IDS_PER_TOKEN: usize = 64;

/// A decoder, reduced to what it does to one token.
struct Rules {
    /// The byte that each character of a byte-level token stands for; empty for other decoders.
    byte_chars: HashMap<char, u8>,
    replacements: Vec<(String, String)>,
    byte_fallback: bool,
    leading: LeadingSpace,
}

impl Rules {
    fn of(decoder: Option<&DecoderWrapper>) -> Result<Self> {
        let Some(decoder) = decoder else {
            return Err(unsupported("none"));
        };
        let value = serde_json::to_value(decoder).map_err(|error| Error::bug(format!("decoder to JSON: {error}")))?;
        let mut rules = Self {
            byte_chars: HashMap::new(),
            replacements: Vec::new(),
            byte_fallback: false,
            leading: LeadingSpace::Keep,
        };
        let mut fused = false;
        let steps = match value["decoders"].as_array() {
            Some(steps) if value["type"] == "Sequence" => steps.as_slice(),
            _ => std::slice::from_ref(&value),
        };
        for step in steps {
            rules.take_step(step, &mut fused, steps.len())?;
        }
        Ok(rules)
    }

    fn take_step(&mut self, step: &Value, fused: &mut bool, step_count: usize) -> Result<()> {
        let kind = step["type"].as_str().unwrap_or("unnamed");
        match kind {
            "ByteLevel" if step_count == 1 => self.byte_chars = byte_chars(),
            "Replace" if !*fused && !self.byte_fallback => {
                let from = step["pattern"]["String"].as_str().filter(|from| !from.is_empty());
                let (Some(from), Some(to)) = (from, step["content"].as_str()) else {
                    return Err(unsupported("Replace with a regular expression"));
                };
                self.replacements.push((from.into(), to.into()));
            }
            "Metaspace" if step_count == 1 => {
                let from = step["replacement"].as_str().ok_or_else(|| unsupported("Metaspace without replacement"))?;
                self.replacements.push((from.into(), " ".into()));
                if step["prepend_scheme"] != "never" {
                    self.leading = LeadingSpace::DropInFirstToken;
                }
            }
            "ByteFallback" if !*fused => self.byte_fallback = true,
            "Fuse" => *fused = true,
            "Strip" if *fused && step["content"] == " " && step["stop"] == 0 && self.leading == LeadingSpace::Keep => {
                let count = step["start"].as_u64().unwrap_or(0);
                self.leading = LeadingSpace::DropUpTo(usize::try_from(count).unwrap_or(usize::MAX));
            }
            _ => return Err(unsupported(kind)),
        }
        Ok(())
    }

    fn append_bytes(&self, token: &str, out: &mut Vec<u8>) {
        if !self.byte_chars.is_empty() {
            let before = out.len();
            for character in token.chars() {
                let Some(byte) = self.byte_chars.get(&character) else {
                    // Added tokens are stored as plain text.
                    out.truncate(before);
                    return out.extend_from_slice(token.as_bytes());
                };
                out.push(*byte);
            }
            return;
        }
        let mut text = std::borrow::Cow::Borrowed(token);
        for (from, to) in &self.replacements {
            if text.contains(from) {
                text = text.replace(from, to).into();
            }
        }
        match fallback_byte(&text).filter(|_| self.byte_fallback) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(text.as_bytes()),
        }
    }
}

/// The byte of a SentencePiece byte token, `<0x0A>`.
fn fallback_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// GPT-2's spelling of bytes as characters, backwards: printable Latin-1 stands for itself, the other bytes follow from
/// U+0100 on, in order.
pub(super) fn byte_chars() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = 0x100u32..;
    let mut character = |byte: u8| match printable(byte) {
        true => char::from(byte),
        false => others.next().and_then(char::from_u32).expect("at most 256 characters from U+0100 on"),
    };
    (0..=u8::MAX).map(|byte| (character(byte), byte)).collect()
}

fn unsupported(kind: &str) -> Error {
    Error::load(format!(
        "the tokenizer's decoder is not supported: {kind}; supported are ByteLevel, Metaspace, and sequences of Replace, \
         ByteFallback, Fuse and Strip as Llama 2 and Gemma have them. Give prompts as token ids instead"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tokenizer(decoder: Value) -> tokenizers::Tokenizer {
        let file = json!({
            "version": "1.0",
            "added_tokens": [{"id": 6, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                              "normalized": false, "special": true}],
            "decoder": decoder,
            "model": {"type": "BPE", "byte_fallback": true, "merges": [],
                      "vocab": {"▁": 0, "▁Hi": 1, "there": 2, "<0xC3>": 3, "<0xA9>": 4, "▁▁a▁b": 5}},
        });
        tokenizers::Tokenizer::from_bytes(file.to_string()).unwrap()
    }

    fn decode(table: &PieceTable, ids: &[TokenId], skip_special: bool) -> String {
        let (mut start, mut bytes) = (table.start(), Vec::new());
        ids.iter().for_each(|id| table.append(*id, skip_special, &mut start, &mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn sentencepiece_decoders_agree_with_the_library() {
        let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let decoders = [
            json!({"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]}),
            json!({"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]}),
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true}),
        ];
        // Bytes in pairs only: the library gives an invalid run one U+FFFD for each byte, we give one for each part.
        let words: [&[TokenId]; 7] = [&[0], &[1], &[2], &[3, 4], &[5], &[6], &[9]];
        for decoder in decoders {
            let library = tokenizer(decoder.clone());
            let table = PieceTable::new(&library).unwrap();
            for case in 0..7usize.pow(3) {
                let ids: Vec<_> = (0..3).flat_map(|place| words[case / 7usize.pow(place) % 7]).copied().collect();
                for skip_special in [false, true] {
                    let expected = library.decode(&ids, skip_special).unwrap();
                    assert_eq!(decode(&table, &ids, skip_special), expected, "{ids:?} with {decoder}");
                }
            }
        }
    }

    #[test]
    fn other_decoders_are_refused_by_name() {
        for (decoder, name) in [
            (json!({"type": "WordPiece", "prefix": "##", "cleanup": true}), "WordPiece"),
            (json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}), "Strip"),
            (json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": " "}), "Replace with a regular"),
            (Value::Null, "none"),
        ] {
            let error = PieceTable::new(&tokenizer(decoder)).err().expect("must be refused").to_string();
            assert!(error.contains(&format!("not supported: {name}")), "{error}");
        }
    }

    #[test]
    fn every_byte_has_one_character() {
        let chars = byte_chars();
        assert_eq!(chars.len(), 256);
        for (character, byte) in [('A', b'A'), ('Ġ', b' '), ('Ċ', b'\n'), ('ÿ', 0xFF), ('Ń', 0xAD), ('Ā', 0)] {
            assert_eq!(chars[&character], byte, "{character}");
        }
    }

    #[test]
    fn an_absurd_id_is_refused_before_memory_is_taken() {
        let mut file: Value =
            serde_json::from_str(&tokenizer(json!({"type": "Fuse"})).to_string(false).unwrap()).unwrap();
        file["model"]["vocab"]["far"] = json!(4_000_000_000u32);
        let library = tokenizers::Tokenizer::from_bytes(file.to_string()).unwrap();
        let error = PieceTable::new(&library).err().expect("must be refused").to_string();
        assert!(error.contains("ids up to 4000000001"), "{error}");
    }
}
