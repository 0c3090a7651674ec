//! Entries of a q8_0 KV cache, as kernels write and read them: the keys or the values of one head at one position, as signed bytes
//! with an f16 scale for each 32 elements. Blocks are rounded as in ggml's q8_0, but for the codes, which are multiples of the
//! scale as stored, so that its own rounding costs nothing but the ends of the range.
//!
//! A head of a KV block has the codes of its 16 entries one after the other, four to a word, and then their scales, two to a
//! word. Entries are counted as `[block][kv head][position in block]`. Mirror: shaders/lib/kv_q8_0.wgsl.

use super::BLOCK_COLUMNS;
use crate::base::BLOCK_TOKENS;
use half::f16;
use std::ops::Range;

/// Largest magnitude of a code.
const LARGEST_CODE: f32 = 127.0;

/// Elements that share a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Q8Block {
    /// A 127th of the largest magnitude.
    pub scale: f16,
    /// Multiples of the scale, from -127 to 127.
    pub codes: [i8; BLOCK_COLUMNS],
}

impl Q8Block {
    /// Rounds numbers to the nearest code, ties to even. If one of them is not finite, the scale is not a number and the codes are
    /// zero, so that everything that reads the block shows it.
    pub fn new(values: &[f32; BLOCK_COLUMNS]) -> Self {
        let without_codes = |scale| Self { scale, codes: [0; BLOCK_COLUMNS] };
        if values.iter().any(|value| !value.is_finite()) {
            return without_codes(f16::NAN);
        }
        let size = values.iter().fold(0.0, |size: f32, value| size.max(value.abs()));
        let scale = f16::from_f32((size * (1.0 / LARGEST_CODE)).min(f16::MAX.to_f32()));
        if scale == f16::ZERO {
            return without_codes(scale);
        }
        let inverse = 1.0 / scale.to_f32();
        let code = |value: f32| (value * inverse).round_ties_even().clamp(-LARGEST_CODE, LARGEST_CODE) as i8;
        Self { scale, codes: values.map(code) }
    }

    /// What it stands for.
    pub fn values(&self) -> [f32; BLOCK_COLUMNS] {
        self.codes.map(|code| self.scale.to_f32() * f32::from(code))
    }
}

/// Where the parts of an entry lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryLayout {
    /// Elements of a head: whole blocks.
    pub head_dim: usize,
}

impl EntryLayout {
    fn code_words(self) -> usize {
        self.head_dim / 4
    }

    fn scale_words(self) -> usize {
        self.head_dim.div_ceil(2 * BLOCK_COLUMNS)
    }

    /// Words of a head of a KV block.
    pub fn head_words(self) -> usize {
        BLOCK_TOKENS * (self.code_words() + self.scale_words())
    }

    /// The words of the codes and of the scales of an entry.
    pub fn words(self, entry: usize) -> [Range<usize>; 2] {
        let (head, place) = (entry / BLOCK_TOKENS * self.head_words(), entry % BLOCK_TOKENS);
        let codes = head + place * self.code_words();
        let scales = head + BLOCK_TOKENS * self.code_words() + place * self.scale_words();
        [codes..codes + self.code_words(), scales..scales + self.scale_words()]
    }

    /// The blocks of an entry of the cache `words`.
    pub fn read(self, words: &[u32], entry: usize) -> Vec<Q8Block> {
        let [codes, scales] = self.words(entry);
        let (codes, scales) = (&words[codes], &words[scales]);
        let block = |index: usize| Q8Block {
            scale: f16::from_bits((scales[index / 2] >> (index % 2 * 16)) as u16),
            codes: std::array::from_fn(|i| codes[index * 8 + i / 4].to_le_bytes()[i % 4] as i8),
        };
        (0..self.head_dim / BLOCK_COLUMNS).map(block).collect()
    }

    /// Puts the blocks of an entry into the cache `words`.
    pub fn write(self, words: &mut [u32], entry: usize, blocks: &[Q8Block]) {
        assert_eq!(blocks.len() * BLOCK_COLUMNS, self.head_dim, "an entry is a whole head");
        let [codes, scales] = self.words(entry);
        words[scales.clone()].fill(0);
        for (index, block) in blocks.iter().enumerate() {
            for (word, codes) in words[codes.start + index * 8..].iter_mut().zip(block.codes.as_chunks().0) {
                *word = u32::from_le_bytes(codes.map(|code| code as u8));
            }
            words[scales.start + index / 2] |= u32::from(block.scale.to_bits()) << (index % 2 * 16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_off_by_half_a_step_at_most() {
        for (size, seed) in [(1.0f32, 1u32), (3e-3, 2), (7e4, 3), (12.7, 4)] {
            let values: [f32; 32] = std::array::from_fn(|i| {
                size * ((i as u32 + 7 * seed).wrapping_mul(2_654_435_761) as f32 / 2f32.powi(31) - 1.0)
            });
            let block = Q8Block::new(&values);
            let step = block.scale.to_f32();
            for (value, kept) in values.iter().zip(block.values()) {
                assert!((value - kept).abs() <= 0.5 * step * 1.0001, "{value} became {kept} in steps of {step}");
            }
        }
    }

    #[test]
    fn zeros_ties_and_what_is_not_finite() {
        assert_eq!(Q8Block::new(&[0.0; 32]).values(), [0.0; 32]);
        let mut values = [0.0; 32];
        // Steps of 1: halves go to the even one.
        values[..5].copy_from_slice(&[127.0, 0.5, 1.5, -2.5, -127.0]);
        assert_eq!(Q8Block::new(&values).codes[..6], [127, 0, 2, -2, -127, 0]);
        // Smaller than the smallest scale, and larger than the largest.
        assert_eq!(Q8Block::new(&[1e-9; 32]).values(), [0.0; 32]);
        assert_eq!(Q8Block::new(&[1e30; 32]).values(), [127.0 * 65504.0; 32]);
        for broken in [f32::NAN, f32::INFINITY, -f32::INFINITY] {
            values[31] = broken;
            assert!(Q8Block::new(&values).values().iter().all(|value| value.is_nan()));
        }
    }

    #[test]
    fn entries_share_no_word_and_fill_the_cache() {
        for head_dim in [32, 64, 96, 256] {
            let layout = EntryLayout { head_dim };
            let mut words = vec![u32::MAX; 3 * layout.head_words()];
            let mut owners = vec![0; words.len()];
            let blocks = |entry: usize| -> Vec<Q8Block> {
                let value = |index: usize| (entry * 32 + index) as f32 * [1.0, -0.5][index % 2];
                (0..head_dim / 32).map(|block| Q8Block::new(&std::array::from_fn(|i| value(block + i)))).collect()
            };
            for entry in 0..3 * BLOCK_TOKENS {
                layout.words(entry).into_iter().flatten().for_each(|word| owners[word] += 1);
                layout.write(&mut words, entry, &blocks(entry));
            }
            assert!(owners.iter().all(|owners| *owners == 1), "{head_dim}");
            for entry in 0..3 * BLOCK_TOKENS {
                assert_eq!(layout.read(&words, entry), blocks(entry), "{head_dim}, entry {entry}");
            }
        }
    }
}
