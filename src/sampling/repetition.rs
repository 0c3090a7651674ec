//! Notices when an output goes round in circles: its end is one run of tokens, several times over.
//!
//! For each length p of a run, a counter says for how many tokens the output has now equalled itself p tokens before. The run stands
//! at the end `count` times exactly if that is at least p * (count - 1). So a token costs one comparison for each length that is
//! looked for, however long the output and however often the run must stand there.

use super::RepetitionDetection;
use crate::base::TokenId;

/// Longest run that can be looked for: each length costs a comparison for every token.
pub const MAX_PATTERN_SIZE: u32 = 1024;

/// Watches the tokens of one output.
pub struct RepetitionWatch {
    min_size: usize,
    min_count: usize,
    /// The latest tokens, the newest at `newest`; as many as the longest run has.
    ring: Vec<TokenId>,
    newest: usize,
    seen: usize,
    /// For the run of `min_size` tokens, and each longer one.
    equal: Vec<usize>,
}

impl RepetitionWatch {
    /// Watches for what `detection` describes, whose ranges have been checked.
    pub fn new(detection: RepetitionDetection) -> Self {
        let RepetitionDetection { max_pattern_size, min_pattern_size, min_count } = detection;
        let (max, min) = (max_pattern_size as usize, min_pattern_size as usize);
        Self {
            min_size: min,
            min_count: min_count as usize,
            ring: vec![0; max],
            newest: 0,
            seen: 0,
            equal: vec![0; max - min + 1],
        }
    }

    /// Takes the next token, and says whether the output now ends in a repetition.
    pub fn push(&mut self, token: TokenId) -> bool {
        let length = self.ring.len();
        let mut repeats = false;
        for (run, equal) in (self.min_size..).zip(&mut self.equal) {
            let before = self.ring[(self.newest + 1 + length - run) % length];
            *equal = if run <= self.seen && before == token { *equal + 1 } else { 0 };
            repeats |= *equal >= run.saturating_mul(self.min_count - 1);
        }
        self.newest = (self.newest + 1) % length;
        self.ring[self.newest] = token;
        self.seen += 1;
        repeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether `tokens` end in a run that stands there `min_count` times, by trying every length.
    fn oracle(tokens: &[TokenId], detection: RepetitionDetection) -> bool {
        let RepetitionDetection { max_pattern_size, min_pattern_size, min_count } = detection;
        (min_pattern_size as usize..=max_pattern_size as usize).any(|size| {
            let Some(start) = tokens.len().checked_sub(size * min_count as usize) else { return false };
            let run = &tokens[tokens.len() - size..];
            tokens[start..].chunks(size).all(|chunk| chunk == run)
        })
    }

    fn first_end(tokens: &[TokenId], max_pattern_size: u32, min_pattern_size: u32, min_count: u32) -> Option<usize> {
        let mut watch = RepetitionWatch::new(RepetitionDetection { max_pattern_size, min_pattern_size, min_count });
        tokens.iter().position(|token| watch.push(*token)).map(|place| place + 1)
    }

    #[test]
    fn a_run_counts_once_it_stands_often_enough() {
        let tokens = [9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3];
        assert_eq!(first_end(&tokens, 3, 3, 2), Some(7));
        assert_eq!(first_end(&tokens, 8, 1, 3), Some(10));
        assert_eq!(first_end(&tokens, 2, 1, 2), None, "the run is longer than what is looked for");
        // Six tokens twice are three tokens four times.
        assert_eq!(first_end(&tokens, 6, 4, 2), Some(13));
        assert_eq!(first_end(&[0, 0, 0], 1, 1, 3), Some(3), "zeros that no token wrote are not taken for tokens");
        assert_eq!(first_end(&[5; 9], 1, 1, u32::MAX), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn every_token_is_judged_as_the_oracle_judges(
            tokens in prop::collection::vec(0u32..3, 0..60),
            min_pattern_size in 1u32..6,
            more in 0u32..6,
            min_count in 2u32..5,
        ) {
            let detection = RepetitionDetection { max_pattern_size: min_pattern_size + more, min_pattern_size, min_count };
            let mut watch = RepetitionWatch::new(detection);
            for (place, token) in tokens.iter().enumerate() {
                prop_assert_eq!(watch.push(*token), oracle(&tokens[..=place], detection), "after {} tokens", place + 1);
            }
        }
    }
}
