//! The parts of a request's sampling that have no fixed size: tokens with a bias, tokens that may not come.

use crate::base::TokenId;

/// The most [words](SamplingLists::words) that a request's lists may take: the room that each slot has on the device.
pub const MAX_LIST_WORDS: usize = 4096;

/// The parts of a request's sampling that have no fixed size. They are sent to the device when the request gets its slot.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SamplingLists {
    /// Tokens whose logits are raised by so much; each at most once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bias: Vec<(TokenId, f32)>,
    /// Runs of tokens of which the last is forbidden where the output ends with the others; none is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bad_words: Vec<Vec<TokenId>>,
    /// Tokens that cannot come before `min_tokens`: the ones that end the output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub early_stops: Vec<TokenId>,
    /// The only tokens that may be sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<TokenId>>,
}

impl SamplingLists {
    /// Whether there is nothing in them.
    pub fn is_empty(&self) -> bool {
        let Self { bias, bad_words, early_stops, allowed } = self;
        bias.is_empty() && bad_words.is_empty() && early_stops.is_empty() && allowed.is_none()
    }

    /// Words that [`write`](Self::write) needs: three counts, then each list.
    pub fn words(&self) -> usize {
        let bad_words: usize = self.bad_words.iter().map(|word| 1 + word.len()).sum();
        3 + 2 * self.bias.len() + self.early_stops.len() + bad_words
    }

    /// As the sampler kernel reads them, without `allowed`, which is a mask: the counts of biases, early stops and bad words; then
    /// (token, bits of the bias) pairs; early stops; and each bad word as its length and its tokens.
    pub fn write(&self, words: &mut Vec<u32>) {
        words.extend([self.bias.len(), self.early_stops.len(), self.bad_words.len()].map(|count| count as u32));
        words.extend(self.bias.iter().flat_map(|(token, bias)| [*token, bias.to_bits()]));
        words.extend(&self.early_stops);
        for word in &self.bad_words {
            words.push(word.len() as u32);
            words.extend(word);
        }
    }
}

/// Words of a token mask: bit i % 32 of word i / 32 allows token i.
pub const fn mask_words(vocab_size: usize) -> usize {
    vocab_size.div_ceil(32)
}

/// Fills `mask` so that it allows `tokens` alone; ids beyond it are left out.
pub fn fill_mask(mask: &mut [u32], tokens: &[TokenId]) {
    mask.fill(0);
    for token in tokens {
        if let Some(word) = mask.get_mut(*token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }
}
