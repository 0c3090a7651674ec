//! How a grammar engine and the token loop meet. The engine knows these two traits only; `structured` implements them.

use super::{Constraint, Whitespace};
use crate::base::TokenId;
use crate::error::Result;

/// Makes guides. Called on threads of its own, never on the engine's.
pub trait GuideCompiler: Send + Sync {
    /// A guide at the beginning of an output.
    ///
    /// # Errors
    /// The constraint is broken, beyond a limit, not supported, or nothing can satisfy it; the message says which part.
    fn compile(&self, constraint: &Constraint, whitespace: Whitespace) -> Result<Box<dyn TokenGuide>>;
}

impl std::fmt::Debug for dyn GuideCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GuideCompiler")
    }
}

/// Follows one output and says which tokens may come next.
pub trait TokenGuide: Send {
    /// Sets bit i % 32 of word i / 32 for each token i that may come next and clears all others. End tokens may come exactly where
    /// the output may end.
    ///
    /// # Errors
    /// Nothing may come next, or finding out goes beyond a limit.
    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<()>;

    /// The output goes on with `token`.
    ///
    /// # Errors
    /// It may not come here; the guide is where it was.
    fn accept(&mut self, token: TokenId) -> Result<()>;

    /// Whether the output may end here.
    ///
    /// # Errors
    /// Finding out goes beyond a limit.
    fn may_end(&mut self) -> Result<bool>;

    /// Whether the output is complete and nothing but its end may follow.
    fn is_done(&self) -> bool;

    /// Takes back the last `tokens` accepted tokens.
    ///
    /// # Errors
    /// There are not so many.
    fn rollback(&mut self, tokens: usize) -> Result<()>;

    /// Another one at the same place, which goes its own way.
    fn fork(&self) -> Box<dyn TokenGuide>;
}

/// The only token that `mask` allows, if there is exactly one.
pub fn forced_token(mask: &[u32]) -> Option<TokenId> {
    let mut only = None;
    for (at, word) in mask.iter().enumerate().filter(|(_, word)| **word != 0) {
        if only.is_some() || !word.is_power_of_two() {
            return None;
        }
        only = Some(at as u32 * 32 + word.trailing_zeros());
    }
    only
}
