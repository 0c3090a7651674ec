//! Incremental decoding: tokens in, text out as soon as it is whole. Not a second way to decode: the chunks of a request
//! joined are exactly what [`Tokenizer::decode`] gives for all its tokens.
//!
//! A token may end within a character. Then nothing is given out until the character is complete, as the streaming
//! decoder of the `tokenizers` crate does, so that the chunk borders are the same too. Like there, a text that ends in
//! U+FFFD waits, since that is how an incomplete character looks; unlike there, only up to a limit.

use super::pieces::Start;
use super::tokenizer::Tokenizer;
use crate::base::TokenId;

/// Bytes that may wait. A model that only makes invalid bytes would otherwise never show anything; the longest wait that
/// well-formed text needs is one token and three bytes.
const MOST_HELD_BYTES: usize = 64;

/// The text of one request as it grows. Work and memory per token do not depend on how long the text is.
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    start: Start,
    /// Bytes not given out yet.
    held: Vec<u8>,
    /// The chunk given out last.
    chunk: String,
}

impl Detokenizer {
    /// An empty text. With `skip_special`, special tokens are left out.
    pub fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        let start = tokenizer.pieces().start();
        Self { tokenizer, skip_special, start, held: Vec::new(), chunk: String::new() }
    }

    /// The text that follows the text of `before`: joined, the two are what [`Tokenizer::decode`] gives for all tokens.
    /// SentencePiece drops the space before a text, so a continuation keeps the one that its first token begins with.
    pub fn after(tokenizer: Tokenizer, before: &[TokenId], skip_special: bool) -> Self {
        let mut detokenizer = Self::new(tokenizer, skip_special);
        let Self { tokenizer, start, held, .. } = &mut detokenizer;
        for id in before {
            if start.is_over() {
                break;
            }
            tokenizer.pieces().append(*id, skip_special, start, held);
            held.clear();
        }
        detokenizer
    }

    /// Takes the next token and returns the new text, which may be empty.
    pub fn push(&mut self, id: TokenId) -> &str {
        self.chunk.clear();
        self.tokenizer.pieces().append(id, self.skip_special, &mut self.start, &mut self.held);
        let open = decode_into(&self.held, &mut self.chunk);
        if !self.chunk.ends_with(char::REPLACEMENT_CHARACTER) {
            self.held.clear();
        } else if self.held.len() <= MOST_HELD_BYTES {
            self.chunk.clear();
        } else {
            // What may still become a character stays; its stand-in goes.
            if open > 0 {
                self.chunk.pop();
            }
            self.held.drain(..self.held.len() - open);
        }
        &self.chunk
    }

    /// Ends the text: returns what was held back, an incomplete character as U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.chunk.clear();
        decode_into(&self.held, &mut self.chunk);
        self.held.clear();
        &self.chunk
    }
}

/// Appends `bytes` as text, invalid parts as U+FFFD. Returns how many bytes at the end are an unfinished character.
fn decode_into(bytes: &[u8], text: &mut String) -> usize {
    let mut open = 0;
    for part in bytes.utf8_chunks() {
        text.push_str(part.valid());
        let invalid = part.invalid();
        if !invalid.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            let unfinished = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            open = if unfinished { invalid.len() } else { 0 };
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use super::super::files::TokenizerFile;
    use super::super::pieces::byte_chars;
    use super::*;
    use crate::base::rng;

    /// A vocabulary in which token b is the byte b.
    fn byte_tokenizer() -> Tokenizer {
        let vocab: serde_json::Map<_, _> =
            byte_chars().into_iter().map(|(character, byte)| (character.to_string(), byte.into())).collect();
        let level = serde_json::json!(
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let file = serde_json::json!({"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level,
                                      "model": {"type": "BPE", "vocab": vocab, "merges": []}});
        Tokenizer::from_file(&TokenizerFile::Json(file.to_string().into_bytes())).unwrap()
    }

    fn chunks(tokenizer: &Tokenizer, ids: &[TokenId]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(tokenizer.clone(), true);
        let mut chunks: Vec<_> = ids.iter().map(|id| detokenizer.push(*id).to_owned()).collect();
        chunks.push(detokenizer.finish().to_owned());
        chunks
    }

    #[test]
    fn characters_come_out_whole() {
        let tokenizer = byte_tokenizer();
        let ids = tokenizer.encode("é🙂z", false).unwrap();
        assert_eq!(chunks(&tokenizer, &ids), ["", "é", "", "", "", "🙂", "z", ""]);
    }

    #[test]
    fn a_replacement_character_of_the_text_itself_waits_for_the_next_token() {
        let tokenizer = byte_tokenizer();
        let ids = tokenizer.encode("\u{FFFD}z", false).unwrap();
        assert_eq!(chunks(&tokenizer, &ids), ["", "", "", "\u{FFFD}z", ""]);
    }

    #[test]
    fn an_unfinished_character_ends_as_one_replacement() {
        assert_eq!(chunks(&byte_tokenizer(), &[0x61, 0xF0, 0x9F, 0x99]), ["a", "", "", "", "\u{FFFD}"]);
    }

    #[test]
    fn endless_invalid_bytes_are_shown_within_the_limit() {
        let tokenizer = byte_tokenizer();
        let mut detokenizer = Detokenizer::new(tokenizer.clone(), true);
        let shown: usize = (0..1000).map(|_| detokenizer.push(0xFF).chars().count()).sum();
        assert!(shown >= 1000 - MOST_HELD_BYTES, "{shown} of 1000");
        assert_eq!(shown + detokenizer.finish().chars().count(), 1000);
        assert!(detokenizer.held.capacity() < 1024, "memory grows with the text");
        // The limit must not cut a character whose first bytes have arrived.
        for offset in 0..4 {
            let mut ids = vec![0xFF; MOST_HELD_BYTES - 2 + offset];
            ids.extend("🙂".bytes().map(TokenId::from));
            let expected = "\u{FFFD}".repeat(MOST_HELD_BYTES - 2 + offset) + "🙂";
            assert_eq!(chunks(&tokenizer, &ids).concat(), expected, "offset {offset}");
        }
    }

    #[test]
    fn streams_equal_decoding_for_random_bytes() {
        let tokenizer = byte_tokenizer();
        // Bytes that build and break characters of every length, more often than chance would.
        let palette = [0x41, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC2, 0xC3, 0xE0, 0xE2, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF];
        for seed in 0..500u64 {
            let word = |position| rng::token_word(seed, position) as usize;
            let ids: Vec<TokenId> = (1..=word(0) as u32 % 200).map(|position| palette[word(position) % 16]).collect();
            let chunks = chunks(&tokenizer, &ids);
            assert_eq!(chunks.concat(), tokenizer.decode(&ids, true), "seed {seed}");
        }
    }
}
