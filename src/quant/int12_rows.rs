//! Rows of activations as whole numbers of twelve bits, as kernels write and products read them: `x` is about `scale * code` with
//! codes from -2047 to 2047 and a scale for each 32 columns. Products with the codes of quantised weights are then whole numbers
//! whose sums stay below 2^24, so that f32 holds them exactly and their order does not matter.
//!
//! A block is eight pairs of words. The first word of pair i holds the upper eight bits of the codes of columns 4 i .. 4 i + 3, a
//! signed byte each; the lower half of the second word their lower four bits, in the order of columns 4 i, 4 i + 2, 4 i + 1,
//! 4 i + 3. The upper half of the second word is about the block: in pairs 0 and 1 the halves of the scale (f32), in pairs 2 and 3
//! the sums of the codes of its first and of its second half, and zero in the others, but for rows that lack the factor of their
//! norm: there pairs 4 and 5 hold the sum of the squares of the block before the norm. Mirror: shaders/lib/int12.wgsl.

use super::BLOCK_COLUMNS;

/// Words of a block.
pub const BLOCK_WORDS: usize = 16;

/// Largest magnitude of a code.
pub const LARGEST_CODE: i16 = 2047;

/// Blocks whose largest number is smaller count as zero: the inverse of their scale would leave f32.
pub const SMALLEST: f32 = 1e-30;

/// Where the lower bits of four columns stand.
const LOWER_BITS: [u32; 4] = [0, 8, 4, 12];

/// One block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Int12Block {
    /// A 2047th of the largest magnitude.
    pub scale: f32,
    /// Multiples of the scale, from -2047 to 2047.
    pub codes: [i16; BLOCK_COLUMNS],
    /// Sum of the squares of what stood here before a norm whose factor is still missing; else 0.
    pub squares: f32,
}

impl Int12Block {
    /// Rounds numbers to the nearest code, ties to even. If one of them is not finite, the scale is not a number and the codes are
    /// zero, so that every product with the block shows it.
    pub fn new(values: &[f32; BLOCK_COLUMNS]) -> Self {
        if values.iter().any(|value| !value.is_finite()) {
            return Self { scale: f32::from_bits(0x7fc0_0000), codes: [0; BLOCK_COLUMNS], squares: 0.0 };
        }
        let size = values.iter().fold(0.0, |size: f32, value| size.max(value.abs()));
        if size < SMALLEST {
            return Self { scale: 0.0, codes: [0; BLOCK_COLUMNS], squares: 0.0 };
        }
        let inverse = f32::from(LARGEST_CODE) / size;
        let scale = size / f32::from(LARGEST_CODE);
        Self { scale, codes: values.map(|value| (value * inverse).round_ties_even() as i16), squares: 0.0 }
    }

    /// The block of these words, which are taken to be well formed.
    pub fn from_words(words: &[u32; BLOCK_WORDS]) -> Self {
        let codes = std::array::from_fn(|column| {
            let (pair, byte) = (column / 4 * 2, column % 4);
            let upper = i16::from(words[pair].to_le_bytes()[byte] as i8);
            upper << 4 | (words[pair + 1] >> LOWER_BITS[byte] & 15) as i16
        });
        let number = |pair: usize| f32::from_bits(words[2 * pair + 1] >> 16 | words[2 * pair + 3] & 0xffff_0000);
        Self { scale: number(0), codes, squares: number(4) }
    }

    /// The block as it stands in memory.
    pub fn words(&self) -> [u32; BLOCK_WORDS] {
        let mut words = [0; BLOCK_WORDS];
        for (column, &code) in self.codes.iter().enumerate() {
            let (pair, byte) = (column / 4 * 2, column % 4);
            words[pair] |= u32::from((code >> 4) as u8) << (8 * byte);
            words[pair + 1] |= u32::from(code as u8 & 15) << LOWER_BITS[byte];
        }
        let (first, second) = self.codes.split_at(BLOCK_COLUMNS / 2);
        let sum = |codes: &[i16]| codes.iter().sum::<i16>() as u16;
        let halves = |number: f32| [number.to_bits() as u16, (number.to_bits() >> 16) as u16];
        let ([a, b], [c, d]) = (halves(self.scale), halves(self.squares));
        for (pair, half) in [a, b, sum(first), sum(second), c, d].into_iter().enumerate() {
            words[2 * pair + 1] |= u32::from(half) << 16;
        }
        words
    }

    /// What the codes stand for, exactly.
    pub fn values(&self) -> [f64; BLOCK_COLUMNS] {
        self.codes.map(|code| f64::from(self.scale) * f64::from(code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_within_half_a_step_and_reach_the_ends() {
        let values: [f32; 32] = std::array::from_fn(|column| (column as f32 - 20.0) * 0.37);
        let block = Int12Block::new(&values);
        assert_eq!((block.codes[0], block.codes[20], block.codes[31]), (-2047, 0, 1126));
        for (value, rounded) in values.iter().zip(block.values()) {
            assert!((f64::from(*value) - rounded).abs() <= f64::from(block.scale) * 0.501);
        }
        assert_eq!(Int12Block::new(&values.map(|value| -value)).codes[0], 2047);
    }

    #[test]
    fn ties_go_to_the_even_code() {
        let mut values = [0.0; 32];
        (values[0], values[1], values[2], values[3]) = (2047.0, 0.5, 1.5, -2.5);
        assert_eq!(Int12Block::new(&values).codes[..4], [2047, 0, 2, -2]);
    }

    #[test]
    fn next_to_nothing_is_nothing() {
        for value in [0.0, 1e-31, f32::MIN_POSITIVE / 4.0] {
            assert_eq!(Int12Block::new(&[value; 32]).values(), [0.0; 32]);
        }
    }

    #[test]
    fn what_is_not_finite_stays_seen() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0; 32];
            values[17] = bad;
            let block = Int12Block::new(&values);
            assert!(block.scale.is_nan() && block.codes == [0; 32]);
            assert!(Int12Block::from_words(&block.words()).values().iter().all(|value| value.is_nan()));
        }
    }

    #[test]
    fn words_hold_codes_scale_and_sums() {
        let codes = std::array::from_fn(|column| 100 * column as i16 - 2000);
        let block = Int12Block { scale: 0.3, codes, squares: 7.5 };
        let words = block.words();
        // -1600 is -100 sixteens; -1500 is -94 sixteens and 4, -1400 -88 and 8, -1300 -82 and 12.
        assert_eq!(words[2].to_le_bytes().map(|byte| byte as i8), [-100, -94, -88, -82]);
        assert_eq!(words[3] & 0xffff, 0xc480);
        let halves = [5, 7].map(|word| (words[word] >> 16) as i16);
        assert_eq!(halves, [-20_000, 5_600]);
        assert!(words[13..].iter().step_by(2).all(|word| word >> 16 == 0));
        assert_eq!(Int12Block::from_words(&words), block);
        // The largest sums fit sixteen bits.
        let full = Int12Block { scale: 1.0, codes: [-LARGEST_CODE; 32], squares: 0.0 };
        assert_eq!(Int12Block::from_words(&full.words()), full);
        assert_eq!((full.words()[5] >> 16) as i16, -32_752);
    }
}
