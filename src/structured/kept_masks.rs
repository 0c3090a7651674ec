//! Masks of a grammar that is a single regular expression, kept by the state of its automaton: which tokens may come depends on
//! nothing else, and most expressions come back to the same few states. Walking the vocabulary takes a hundred times as long as
//! copying a mask.

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{SimpleVob, TokTrie};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of masks that one guide keeps: 170 of 50,000 tokens.
const MOST_BYTES: usize = 1 << 20;

/// Belongs to one guide: states have the same numbers in no two automata, not even of the same expression.
pub(super) struct KeptMasks {
    /// Makes what is not kept.
    maker: Arc<dyn BiasComputer>,
    kept: Mutex<HashMap<StateID, SimpleVob>>,
}

impl KeptMasks {
    pub(super) fn new(maker: Arc<dyn BiasComputer>) -> Self {
        Self { maker, kept: Mutex::default() }
    }

    /// The same for a copy of the guide, whose automaton has the same states so far.
    pub(super) fn fork(&self) -> Self {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Self { maker: Arc::clone(&self.maker), kept: Mutex::new(kept) }
    }
}

impl BiasComputer for KeptMasks {
    fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        if !start.is_empty() {
            return self.maker.compute_bias(recognizer, start);
        }
        let state = recognizer.lexer_state();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mask) = kept.get(&state) {
            return mask.clone();
        }
        let mask = self.maker.compute_bias(recognizer, start);
        if (kept.len() + 1) * mask.as_slice().len() * size_of::<u32>() > MOST_BYTES {
            // Those that come back are soon there again.
            kept.clear();
        }
        kept.insert(state, mask.clone());
        mask
    }

    fn trie(&self) -> &TokTrie {
        self.maker.trie()
    }
}
