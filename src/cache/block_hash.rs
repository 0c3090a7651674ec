//! Names of full KV blocks: a chain of SHA-256 over everything that their KV depends on.
//!
//! The bytes are fixed, so that routers and other tools can compute the same names. A block's hash is
//! `sha256(cbor([parent, tokens, extra]))` in canonical CBOR (RFC 8949, section 4.2.1: shortest heads, definite
//! lengths):
//!
//! | part     | encoding                                                                            |
//! |----------|-------------------------------------------------------------------------------------|
//! | array    | `83`                                                                                |
//! | parent   | `58 20`, then the 32 bytes of the previous block's hash                             |
//! | tokens   | `90`, then 16 unsigned integers (`00`..`17`, `18 xx`, `19 xxxx`, `1a xxxxxxxx`)     |
//! | extra    | `f6` (null), or, in a first block with extra keys, an array of text strings         |
//!
//! The parent of a first block is `sha256(cbor(seed))`, the seed being a text string ([`HashChain::DEFAULT_SEED`]
//! unless set). The extra keys are those of the chain ([`HashChain::with_extra_keys`]: an adapter's name, a model's
//! identity), then the salt. They stand in the first block alone; the chain carries them on.

use crate::base::{BLOCK_TOKENS, TokenId};
use sha2::{Digest, Sha256};

/// The name of a full block, which also fixes all blocks before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 32]);

impl std::fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Computes block hashes. Keeps its buffer, so that hashing allocates nothing after the first call.
#[derive(Clone, Debug)]
pub struct HashChain {
    root: BlockHash,
    extra: Vec<String>,
    buffer: Vec<u8>,
}

impl HashChain {
    /// The seed of the first parent unless another is chosen.
    pub const DEFAULT_SEED: &'static str = "octavo";

    /// A chain that starts from `seed`.
    pub fn new(seed: &str) -> Self {
        let mut buffer = Vec::with_capacity(256);
        text(&mut buffer, seed);
        Self { root: digest(&buffer), extra: Vec::new(), buffer }
    }

    /// The same chain with extra keys for every first block, besides the salt.
    pub fn with_extra_keys(mut self, keys: &[&str]) -> Self {
        self.extra = keys.iter().map(|key| (*key).to_owned()).collect();
        self
    }

    /// The parent of first blocks.
    pub fn root(&self) -> BlockHash {
        self.root
    }

    /// The hash of the block that holds `tokens` and follows `parent`; `None` starts a chain, and only there does
    /// `salt` count.
    ///
    /// # Panics
    /// If `tokens` is not a full block: partial blocks have no name.
    pub fn next(&mut self, parent: Option<BlockHash>, tokens: &[TokenId], salt: Option<&str>) -> BlockHash {
        assert_eq!(tokens.len(), BLOCK_TOKENS, "only full blocks are hashed");
        let out = &mut self.buffer;
        out.clear();
        head(out, ARRAY, 3);
        let BlockHash(bytes) = parent.unwrap_or(self.root);
        head(out, BYTES, bytes.len() as u64);
        out.extend_from_slice(&bytes);
        head(out, ARRAY, tokens.len() as u64);
        for token in tokens {
            head(out, UNSIGNED, u64::from(*token));
        }
        let extra = self.extra.iter().map(String::as_str).chain(salt);
        match extra.clone().count() {
            keys @ 1.. if parent.is_none() => {
                head(out, ARRAY, keys as u64);
                extra.for_each(|key| text(out, key));
            }
            _ => out.push(NULL),
        }
        digest(out)
    }
}

/// Major types of CBOR, already shifted into place.
const UNSIGNED: u8 = 0x00;
const BYTES: u8 = 0x40;
const TEXT: u8 = 0x60;
const ARRAY: u8 = 0x80;
const NULL: u8 = 0xf6;

/// The head of a CBOR item: major type and argument in the shortest form.
fn head(out: &mut Vec<u8>, major: u8, argument: u64) {
    let bytes = argument.to_be_bytes();
    match argument {
        0..=23 => out.push(major | bytes[7]),
        24..=0xff => out.extend([major | 24, bytes[7]]),
        0x100..=0xffff => {
            out.push(major | 25);
            out.extend_from_slice(&bytes[6..]);
        }
        0x1_0000..=0xffff_ffff => {
            out.push(major | 26);
            out.extend_from_slice(&bytes[4..]);
        }
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&bytes);
        }
    }
}

fn text(out: &mut Vec<u8>, value: &str) {
    head(out, TEXT, value.len() as u64);
    out.extend_from_slice(value.as_bytes());
}

fn digest(bytes: &[u8]) -> BlockHash {
    BlockHash(Sha256::digest(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(hash: BlockHash) -> String {
        hash.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn tokens(start: u32) -> Vec<TokenId> {
        (start..start + 16).collect()
    }

    #[test]
    fn hashes_equal_those_of_another_implementation() {
        // From Python's hashlib over bytes that were put together by hand after RFC 8949; every head length occurs.
        let first = [0, 23, 24, 255, 256, 65535, 65536, u32::MAX, 0, 1, 2, 3, 4, 5, 6, 7];
        let mut chain = HashChain::new("octavo");
        assert_eq!(hex(chain.root()), "cc0979aa12dac07fd956791a6a086c973546d2ffd6a25304e95d8c5705a63262");
        let parent = chain.next(None, &first, None);
        assert_eq!(hex(parent), "dd12189431d30c89e4d906b286d8c97257258988d64deff93b2057c589581b9f");
        assert_eq!(
            hex(chain.next(Some(parent), &tokens(100), None)),
            "18c8c257dbb9e4c95886242c93601f40dc98efee429a39635701220506e9fba2"
        );
        assert_eq!(
            hex(chain.next(None, &first, Some("team1"))),
            "b072070b0170c095caeb13bac66bbeb6434ca30c4208190b1bbdc90dc81dc9fc"
        );
    }

    #[test]
    fn everything_the_kv_depends_on_changes_the_hash() {
        let mut chain = HashChain::new("a");
        let first = chain.next(None, &tokens(0), None);
        let second = chain.next(Some(first), &tokens(0), None);
        assert_ne!(first, second, "the same tokens at another position");
        let other = chain.next(None, &tokens(1), None);
        assert_ne!(second, chain.next(Some(other), &tokens(0), None), "after another prefix");
        assert_ne!(first, chain.next(None, &tokens(0), Some("s")), "salt");
        assert_ne!(first, HashChain::new("b").next(None, &tokens(0), None), "seed");
        assert_ne!(first, HashChain::new("a").with_extra_keys(&["s"]).next(None, &tokens(0), None), "extra key");
    }

    #[test]
    fn salt_counts_in_the_first_block_alone() {
        let mut chain = HashChain::new("a");
        let first = chain.next(None, &tokens(0), Some("s"));
        assert_eq!(chain.next(Some(first), &tokens(0), Some("s")), chain.next(Some(first), &tokens(0), None));
    }

    #[test]
    #[should_panic(expected = "only full blocks")]
    fn partial_blocks_have_no_hash() {
        HashChain::new("a").next(None, &[1, 2, 3], None);
    }
}
