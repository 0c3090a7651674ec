//! Buckets: a plan's sizes rounded up, so that few bundles serve all plans. Grids are made for the bucket; kernels learn the
//! real counts from the step inputs and skip the padding.

use super::inputs::StepInputs;
use crate::base::{KV_CHUNK, ceil_div};

/// Rounded sizes of a plan: the key of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket {
    /// Token rows; at least 1.
    pub rows: usize,
    /// Decode rows.
    pub decode: usize,
    /// Attention tiles over prompt rows.
    pub tiles: usize,
    /// Wanted logit rows.
    pub samples: usize,
    /// KV chunks of the longest decode row, a power of two.
    pub chunks: usize,
    /// Whether some wanted row reports log-probabilities.
    pub logprobs: bool,
}

/// Upper ends for the sizes of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Token rows in a step.
    pub max_rows: usize,
    /// Slots.
    pub max_slots: usize,
    /// Longest context.
    pub max_context: usize,
}

impl Bucket {
    /// The bucket of the plan that `inputs` was built from.
    pub fn of(inputs: &StepInputs, geometry: &Geometry) -> Self {
        let header = &inputs.header;
        let up = |count: u32, limit: usize| match count as usize {
            0 => 0,
            count => count.next_power_of_two().min(limit.max(count)),
        };
        // Always a power of two, the stride of the partial results. A row may end before the plan's last step.
        let chunks = match header.decode_count {
            0 => 0,
            _ => ceil_div(inputs.decode_context.min(geometry.max_context), KV_CHUNK).next_power_of_two(),
        };
        Self {
            rows: up(header.row_count, geometry.max_rows),
            decode: up(header.decode_count, geometry.max_slots),
            tiles: up(header.tile_count, geometry.max_rows),
            samples: up(header.sample_count, geometry.max_rows + geometry.max_slots),
            chunks,
            logprobs: inputs.wants_logprobs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_a_power_of_two_within_the_context() {
        let chunks = |decode_context, max_context| {
            let mut inputs = StepInputs::default();
            inputs.header.decode_count = 1;
            inputs.decode_context = decode_context;
            Bucket::of(&inputs, &Geometry { max_rows: 8, max_slots: 8, max_context }).chunks
        };
        assert_eq!(chunks(1204, 1500), 8);
        // A row that ends while others go on: steps beyond the context do not count.
        assert_eq!(chunks(258, 256), 1);
        assert_eq!(chunks(514, 512), 2);
        assert_eq!(chunks(4098, 4096), 16);
    }
}
