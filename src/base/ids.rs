//! Newtypes for the numbers that must not be mixed up.

/// A vocabulary index. An alias rather than a newtype: prompts, JSON and GPU buffers all carry plain `u32`s.
pub type TokenId = u32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// One call of the user. Owns one or more sequences.
    RequestId(u64)
);
id!(
    /// One token list with its KV blocks.
    SeqId(u64)
);
id!(
    /// A physical KV block of [`BLOCK_TOKENS`](super::BLOCK_TOKENS) tokens, in every layer at once.
    BlockId(u32)
);
id!(
    /// A place for one KV block in host memory.
    HostBlockId(u32)
);
id!(
    /// A row of per-sequence state in GPU memory. A running sequence owns exactly one.
    SlotId(u32)
);
id!(
    /// Number of a submission. Results retire in epoch order.
    Epoch(u64)
);

impl BlockId {
    /// Index into per-block arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl HostBlockId {
    /// Index into per-block arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl SlotId {
    /// Index into per-slot arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Epoch {
    /// The submission after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
