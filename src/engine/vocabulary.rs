//! What a request's parameters mean for the model at hand: token ids checked, bad words as tokens, the row and the lists that the
//! sampler reads. Done once, on the caller's thread.

use super::settings::EngineSettings;
use crate::base::TokenId;
use crate::error::{Error, Result};
use crate::runner::Capacity;
use crate::sampling::lists::MAX_LIST_WORDS;
use crate::sampling::{SamplingLists, SamplingParams, SamplingRow, TopLogprobs};
use crate::text::Tokenizer;
use std::sync::Arc;

/// A bias beyond it, either way, counts as this one: it outweighs any logit.
const MAX_BIAS: f32 = 100.0;

/// Ids that a refusal lists.
const LISTED: usize = 8;

/// The tokens of a model, and what the engine allows to ask about them.
pub(super) struct Vocabulary {
    tokenizer: Option<Tokenizer>,
    /// Tokens that have a logit.
    size: u32,
    /// Ids below it may be sampled: the tokenizer knows them. What lies above fills the model's matrices up.
    known: u32,
    end_tokens: Vec<TokenId>,
    max_logprobs: Option<u32>,
}

/// Sampling parameters as scheduler and sampler read them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Prepared {
    /// Every token that ends the output.
    pub stop_tokens: Vec<TokenId>,
    /// Without the seed.
    pub row: SamplingRow,
    pub lists: Option<Arc<SamplingLists>>,
}

impl Vocabulary {
    pub fn new(tokenizer: Option<Tokenizer>, settings: &EngineSettings, capacity: &Capacity) -> Self {
        let size = capacity.vocab_size;
        let known = tokenizer.as_ref().map(|tokenizer| u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX));
        Self {
            tokenizer,
            size,
            known: known.map_or(size, |known| known.min(size)),
            end_tokens: settings.end_tokens.clone(),
            max_logprobs: settings.max_logprobs,
        }
    }

    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// What `params`, whose ranges have been checked, mean here.
    ///
    /// # Errors
    /// Token ids that do not exist, texts without a tokenizer, more log-probabilities than are allowed, lists that are too long.
    pub fn prepare(&self, params: &SamplingParams) -> Result<Prepared> {
        self.check_ids("logit_bias", params.logit_bias.keys().copied())?;
        self.check_ids("allowed_token_ids", params.allowed_token_ids.iter().flatten().copied())?;
        self.check_ids("stop_token_ids", params.stop_token_ids.iter().copied())?;
        self.check_logprobs("logprobs", params.logprobs)?;
        self.check_logprobs("prompt_logprobs", params.prompt_logprobs)?;
        let stop_tokens = self.stop_tokens(params);
        let lists = self.lists(params, &stop_tokens)?;
        let mut row = SamplingRow::new(params, 0, &stop_tokens).with_lists(&lists);
        row.token_limit = self.known;
        Ok(Prepared { stop_tokens, row, lists: (!lists.is_empty()).then(|| Arc::new(lists)) })
    }

    fn stop_tokens(&self, params: &SamplingParams) -> Vec<TokenId> {
        // A grammar says where an output may end, and there it does.
        let models = if params.ignore_eos && params.constraint.is_none() { &[][..] } else { &self.end_tokens };
        let mut stop_tokens: Vec<TokenId> = Vec::new();
        for token in params.stop_token_ids.iter().chain(models) {
            if !stop_tokens.contains(token) {
                stop_tokens.push(*token);
            }
        }
        stop_tokens
    }

    fn lists(&self, params: &SamplingParams, stop_tokens: &[TokenId]) -> Result<SamplingLists> {
        let lists = SamplingLists {
            bias: params.logit_bias.iter().map(|(token, bias)| (*token, bias.clamp(-MAX_BIAS, MAX_BIAS))).collect(),
            bad_words: self.bad_words(&params.bad_words)?,
            early_stops: if params.min_tokens > 0 { stop_tokens.to_vec() } else { Vec::new() },
            allowed: params.allowed_token_ids.clone(),
        };
        match lists.words() {
            0..=MAX_LIST_WORDS => Ok(lists),
            words => Err(Error::config(format!(
                "logit_bias with {} tokens, bad_words with {} runs of tokens and, because of min_tokens, {} stop tokens take \
                 {words} words of device memory, but each request has {MAX_LIST_WORDS}; a bias takes two, a stop token one, \
                 a bad word one and one for each of its tokens; shorten them",
                lists.bias.len(),
                lists.bad_words.len(),
                lists.early_stops.len()
            ))),
        }
    }

    /// The tokens of each text with and without a space before.
    fn bad_words(&self, texts: &[String]) -> Result<Vec<Vec<TokenId>>> {
        let mut runs: Vec<Vec<TokenId>> = Vec::new();
        for text in texts {
            let Some(tokenizer) = &self.tokenizer else {
                return Err(Error::config("bad_words need a tokenizer, which this model lacks; use logit_bias"));
            };
            let word = text.trim_start();
            let encode = |text: &str| tokenizer.encode(text, false).map_err(|error| error.context("bad_words"));
            // SentencePiece begins every text with a space, so the token that stands within a word is looked up.
            let within = tokenizer.token_to_id(word).filter(|id| tokenizer.token_bytes(*id) == word.as_bytes());
            for run in [encode(word)?, encode(&format!(" {word}"))?, within.into_iter().collect()] {
                if !run.is_empty() && !runs.contains(&run) {
                    runs.push(run);
                }
            }
        }
        Ok(runs)
    }

    fn check_ids(&self, name: &str, ids: impl Iterator<Item = TokenId>) -> Result<()> {
        let bad: Vec<TokenId> = ids.filter(|id| *id >= self.known).collect();
        if bad.is_empty() {
            return Ok(());
        }
        let listed: Vec<String> = bad.iter().take(LISTED).map(TokenId::to_string).collect();
        let more = if bad.len() > LISTED { format!(" and {} more", bad.len() - LISTED) } else { String::new() };
        Err(Error::config(format!(
            "{name} names {}{more}, but the vocabulary's ids go from 0 to {}",
            listed.join(", "),
            self.known.saturating_sub(1)
        )))
    }

    fn check_logprobs(&self, name: &str, wanted: Option<TopLogprobs>) -> Result<()> {
        let (count, given) = match wanted {
            None => return Ok(()),
            Some(TopLogprobs::Most(count)) => (count, count.to_string()),
            Some(TopLogprobs::All) => (self.size, format!("all, which is {}", self.size)),
        };
        match self.max_logprobs {
            Some(max) if count > max => Err(Error::config(format!(
                "{name} is {given}, but max_logprobs allows {max}; ask for fewer, or open the model with a higher max_logprobs"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::TokenizerFile;
    use serde_json::json;

    const SIZE: u32 = 16;

    fn capacity() -> Capacity {
        Capacity {
            block_count: 4,
            slot_count: 1,
            max_batched_tokens: 16,
            max_model_len: 64,
            max_steps: 1,
            vocab_size: SIZE,
            host_blocks: 0,
            window: None,
            logprob_entries: SIZE,
        }
    }

    fn settings() -> EngineSettings {
        let mut settings = EngineSettings::for_capacity(capacity());
        settings.end_tokens = vec![2, 3];
        settings
    }

    fn bare() -> Vocabulary {
        Vocabulary::new(None, &settings(), &capacity())
    }

    /// Six tokens, of which the model knows sixteen.
    fn with_tokenizer() -> Vocabulary {
        let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let file = json!({
            "version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level,
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġa": 4, "c": 5},
                      "merges": [["a", "b"], ["Ġ", "a"]]},
        });
        let tokenizer = Tokenizer::from_file(&TokenizerFile::Json(file.to_string().into_bytes())).unwrap();
        Vocabulary::new(Some(tokenizer), &settings(), &capacity())
    }

    fn base() -> SamplingParams {
        SamplingParams::default()
    }

    fn refusal(vocabulary: &Vocabulary, params: &SamplingParams) -> String {
        vocabulary.prepare(params).unwrap_err().to_string()
    }

    #[test]
    fn plain_requests_have_no_lists() {
        let prepared = bare().prepare(&base()).unwrap();
        assert_eq!((prepared.lists, prepared.stop_tokens), (None, vec![2, 3]));
        assert_eq!(prepared.row.token_limit, SIZE);
        assert_eq!(with_tokenizer().prepare(&base()).unwrap().row.token_limit, 6);
    }

    #[test]
    fn lists_hold_what_the_parameters_say() {
        let params = (base().logit_bias(4, 300.0).logit_bias(5, -1.5).allowed_token_ids([1, 2]))
            .stop_token_id(3)
            .stop_token_id(1)
            .stop_token_id(3)
            .min_tokens(2)
            .bad_word(" ab")
            .bad_word("c")
            .bad_word("ab");
        let prepared = with_tokenizer().prepare(&params).unwrap();
        assert_eq!(prepared.stop_tokens, [3, 1, 2], "each once");
        let expected = SamplingLists {
            bias: vec![(4, 100.0), (5, -1.5)],
            // "ab" and " ab" as the merges make them, then "c" and " c".
            bad_words: vec![vec![2], vec![3, 2], vec![5], vec![3, 5]],
            early_stops: vec![3, 1, 2],
            allowed: Some(vec![1, 2]),
        };
        assert_eq!(prepared.lists.as_deref(), Some(&expected));
        let row = SamplingRow::new(&params, 0, &[3, 1, 2]).with_lists(&expected);
        assert_eq!(prepared.row, SamplingRow { token_limit: 6, ..row });
        let late = with_tokenizer().prepare(&base().ignore_eos().stop_token_id(1).logit_bias(0, 1.0)).unwrap();
        assert_eq!((late.stop_tokens, late.lists.unwrap().early_stops.len()), (vec![1], 0));
    }

    #[test]
    fn a_word_is_forbidden_within_another_one_too() {
        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let normalizers = [json!({"type": "Prepend", "prepend": "▁"}), replace(" ", "▁")];
        let decoders = [replace("▁", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"}), strip];
        let file = json!({
            "version": "1.0", "added_tokens": [],
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {"type": "BPE", "vocab": {"▁": 0, "a": 1, "b": 2, "ab": 3, "▁ab": 4, "é": 5},
                      "merges": [["a", "b"], ["▁", "ab"]]},
        });
        let tokenizer = Tokenizer::from_file(&TokenizerFile::Json(file.to_string().into_bytes())).unwrap();
        let vocabulary = Vocabulary::new(Some(tokenizer), &settings(), &capacity());
        let runs = |word: &str| vocabulary.prepare(&base().bad_word(word)).unwrap().lists.unwrap().bad_words.clone();
        assert_eq!(runs("ab"), [vec![4], vec![0, 4], vec![3]]);
        assert_eq!(runs("ba"), [vec![0, 2, 1], vec![0, 0, 2, 1]]);
        assert_eq!(runs("é"), [vec![0, 5], vec![0, 0, 5], vec![5]]);
        // What a byte-level vocabulary spells like a word may stand for other bytes.
        let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let file = json!({
            "version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level,
            "model": {"type": "BPE", "vocab": {"é": 0, "Ã": 1, "©": 2, "Ġ": 3}, "merges": []},
        });
        let tokenizer = Tokenizer::from_file(&TokenizerFile::Json(file.to_string().into_bytes())).unwrap();
        let vocabulary = Vocabulary::new(Some(tokenizer), &settings(), &capacity());
        let lists = vocabulary.prepare(&base().bad_word("é")).unwrap().lists.unwrap();
        assert_eq!(lists.bad_words, [vec![1, 2], vec![3, 1, 2]]);
    }

    #[test]
    fn unknown_ids_are_listed() {
        let message = refusal(&with_tokenizer(), &base().logit_bias(5, 1.0).logit_bias(6, 1.0).logit_bias(99, 1.0));
        assert_eq!(message, "logit_bias names 6, 99, but the vocabulary's ids go from 0 to 5");
        let message = refusal(&bare(), &base().allowed_token_ids(15..30));
        assert!(message.contains("allowed_token_ids names 16, 17, 18, 19, 20, 21, 22, 23 and 6 more"), "{message}");
        assert!(refusal(&bare(), &base().stop_token_id(16)).contains("stop_token_ids names 16"));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_numbers() {
        let bias = (0..6).fold(base(), |params, token| params.logit_bias(token, 1.0));
        // Each takes a word and a token for each byte, twice, one of them with a space.
        let long: Vec<String> = (0..4).map(|i| ["a", "b", "c", "ab"][i].repeat(300 + i)).collect();
        let fits = long.iter().take(3).fold(bias.clone(), |params, word| params.bad_word(word.clone()));
        let vocabulary = with_tokenizer();
        let words = vocabulary.prepare(&fits).unwrap().lists.unwrap().words();
        let message = refusal(&vocabulary, &SamplingParams { bad_words: vec!["c".repeat(MAX_LIST_WORDS)], ..bias });
        assert!(words < MAX_LIST_WORDS && message.contains("logit_bias with 6 tokens"), "{message}");
        assert!(message.contains("8210 words") && message.contains("has 4096"), "{message}");
    }

    #[test]
    fn log_probabilities_stay_within_the_limit() {
        let message = refusal(&bare(), &base().logprobs(21));
        assert!(message.starts_with("logprobs is 21, but max_logprobs allows 20"), "{message}");
        let mut settings = settings();
        settings.max_logprobs = Some(SIZE - 1);
        let strict = Vocabulary::new(None, &settings, &capacity());
        let message = refusal(&strict, &base().prompt_logprobs(TopLogprobs::All));
        assert!(message.starts_with("prompt_logprobs is all, which is 16, but max_logprobs allows 15"), "{message}");
        settings.max_logprobs = None;
        let free = Vocabulary::new(None, &settings, &capacity());
        free.prepare(&base().logprobs(1000).prompt_logprobs(TopLogprobs::All)).unwrap();
    }

    #[test]
    fn texts_need_a_tokenizer() {
        assert!(refusal(&bare(), &base().bad_word("a")).contains("bad_words need a tokenizer"));
    }
}
