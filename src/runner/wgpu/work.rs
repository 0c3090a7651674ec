//! Work of a dispatch, for rooflines: multiply-adds, and the bytes of weights or keys and values that must be read for them.
//! Activations are left out of the bytes: they stay in a cache.

use crate::base::DType;
use crate::config::KvDtype;
use crate::gpu::{Const, Dispatch, Variant};
use crate::quant;
use std::ops::Add;

/// Work of one or several dispatches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Floating point (or integer) operations; a multiply-add is two.
    pub flops: u64,
    /// Bytes of weights, or of keys and values, each counted once.
    pub bytes: u64,
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }
}

/// What a step computes, as far as work depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepShape {
    rows: u64,
    /// Rows whose logits are wanted.
    samples: u64,
    /// Positions that all query rows see together.
    seen: u64,
    /// Positions whose keys and values are read.
    positions: u64,
}

impl StepShape {
    /// `rows` sequences that see `context` positions each.
    pub(super) fn decode(rows: usize, context: usize) -> Self {
        let rows = rows as u64;
        let positions = rows * context as u64;
        Self { rows, samples: rows, seen: positions, positions }
    }

    /// The first `tokens` tokens of a prompt.
    pub(super) fn prompt(tokens: usize) -> Self {
        let rows = tokens as u64;
        Self { rows, samples: 1, seen: rows * (rows + 1) / 2, positions: rows }
    }
}

/// The work of `dispatch` in a step of this shape; `None` for kernels that only pass over activations, whose time is that of
/// the dispatch itself. A product with experts counts only what its label cannot tell, so it has none either.
pub(super) fn work(dispatch: &Dispatch, shape: &StepShape) -> Option<Work> {
    let variant = &dispatch.pipeline.variant;
    match (slot(variant, "weights"), slot(variant, "kv")) {
        (Some(format), _) if variant.kernel.starts_with("matmul") => {
            let code_words = quant::format(format.parse::<DType>().ok()?).planes().code_words as u64;
            let weights = dispatch.bytes_of("codes") / (4 * code_words) * 32;
            let bytes = ["codes", "scales", "bits"].map(|plane| dispatch.bytes_of(plane)).iter().sum();
            let rows = match slot(variant, "batch")? {
                "rows" | "listed" => shape.rows,
                "samples" => shape.samples,
                _ => return None,
            };
            Some(Work { flops: 2 * weights * rows, bytes })
        }
        (_, Some(kv)) if variant.kernel == "attention" => {
            let number = |name| constant(variant, name);
            let (heads, kv_heads, head_dim) = (number("HEADS")?, number("KV_HEADS")?, number("HEAD_DIM")?);
            let kv = kv.trim_end_matches("_wide");
            let head_bytes = kv.parse::<KvDtype>().ok()?.head_bytes(head_dim as usize) as u64;
            // Scores, and values by their weights.
            Some(Work { flops: 4 * heads * head_dim * shape.seen, bytes: 2 * kv_heads * head_bytes * shape.positions })
        }
        _ => None,
    }
}

fn slot(variant: &Variant, name: &str) -> Option<&'static str> {
    variant.slots.iter().find(|(slot, _)| *slot == name).map(|(_, implementation)| *implementation)
}

fn constant(variant: &Variant, name: &str) -> Option<u64> {
    variant.consts.iter().find(|(known, _)| *known == name).and_then(|(_, value)| match value {
        Const::U32(value) => Some(u64::from(*value)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_see_a_triangle() {
        let shape = StepShape::prompt(4);
        assert_eq!((shape.rows, shape.samples, shape.seen, shape.positions), (4, 1, 10, 4));
        let shape = StepShape::decode(3, 100);
        assert_eq!((shape.rows, shape.samples, shape.seen, shape.positions), (3, 3, 300, 300));
    }
}
