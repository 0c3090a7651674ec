//! Reading fields of blocks, and arranging the codes of 32 columns for the device.
//!
//! A shader decodes four columns at a time: those of vector `i` are `4 i .. 4 i + 4`. All arrangements put the four codes
//! of a vector at the same bit of the four bytes of one word, so that a shift and a mask give them.

use super::BLOCK_COLUMNS;

/// Codes of the columns of one block, one byte each.
pub(super) type Codes = [u8; BLOCK_COLUMNS];

/// The u16 at `offset` of a block.
pub(super) fn u16_at(block: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([block[offset], block[offset + 1]])
}

/// The u32 at `offset` of a block.
pub(super) fn u32_at(block: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([block[offset], block[offset + 1], block[offset + 2], block[offset + 3]])
}

/// The f16 at `offset` of a block.
pub(super) fn f16_at(block: &[u8], offset: usize) -> f32 {
    half::f16::from_bits(u16_at(block, offset)).to_f32()
}

/// Writes `value` as f16 at `offset` of a block, rounded to the nearest, ties to even.
pub(super) fn set_f16(block: &mut [u8], offset: usize, value: f32) {
    block[offset..offset + 2].copy_from_slice(&half::f16::from_f32(value).to_bits().to_le_bytes());
}

/// Low four bits of `element` in the nibble order of GGUF's 32-element blocks: byte j holds element j (low nibble) and
/// j + 16 (high).
pub(super) fn nibble(codes: &[u8], element: usize) -> u8 {
    match element < BLOCK_COLUMNS / 2 {
        true => codes[element] & 0x0f,
        false => codes[element - BLOCK_COLUMNS / 2] >> 4,
    }
}

/// Writes codes of four bits in that order.
pub(super) fn set_nibbles(bytes: &mut [u8], codes: &Codes) {
    for (byte, pair) in bytes.iter_mut().zip(codes[..16].iter().zip(&codes[16..])) {
        *byte = (pair.0 & 0x0f) | pair.1 << 4;
    }
}

/// The fifth bit of `element`, in its place above a nibble.
pub(super) fn fifth_bit(high: u32, element: usize) -> u8 {
    ((high >> element & 1) as u8) << 4
}

/// The fifth bits of all codes, bit i for element i.
pub(super) fn fifth_bits(codes: &Codes) -> u32 {
    codes.iter().rev().fold(0, |bits, code| bits << 1 | u32::from(code >> 4 & 1))
}

/// Takes code bytes over unchanged, four to a word, little end first.
pub(super) fn set_words(words: &mut [u32], bytes: &[u8]) {
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32_at(bytes, 0);
    }
}

/// Low nibbles: byte j of the four words holds column j (low nibble) and j + 16 (high).
pub(super) fn pack_nibbles(codes: &Codes) -> [u32; 4] {
    let mut bytes = [0; 16];
    set_nibbles(&mut bytes, codes);
    let mut words = [0; 4];
    set_words(&mut words, &bytes);
    words
}

/// Codes of two bits: vector i lies in word `i % 2`, at bit `2 * (i / 2)` of each byte.
pub(super) fn pack_pairs(codes: &Codes) -> [u32; 2] {
    let mut words = [0; 2];
    for (column, &code) in codes.iter().enumerate() {
        let (vector, byte) = (column / 4, column % 4);
        words[vector % 2] |= u32::from(code & 3) << (8 * byte + 2 * (vector / 2));
    }
    words
}

/// Codes of one bit: vector i lies at bit i of each byte.
pub(super) fn pack_bits(codes: &Codes) -> u32 {
    let bit = |(column, &code): (usize, &u8)| u32::from(code & 1) << (8 * (column % 4) + column / 4);
    codes.iter().enumerate().map(bit).fold(0, |word, bit| word | bit)
}

/// The value with the largest magnitude (the first, if several have it), as ggml chooses the end of a signed scale.
pub(super) fn farthest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |far: f32, &value| if value.abs() > far.abs() { value } else { far })
}

/// Smallest and largest value.
pub(super) fn range(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &value| (low.min(value), high.max(value)))
}

/// `1 / scale`, and 0 for 0.
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes() -> Codes {
        std::array::from_fn(|column| (column * 7 + 3) as u8)
    }

    #[test]
    fn a_vector_is_a_shift_and_a_mask() {
        let codes = codes();
        let (nibbles, pairs, bits) = (pack_nibbles(&codes), pack_pairs(&codes), pack_bits(&codes));
        for vector in 0..8 {
            let four: [u8; 4] = codes[4 * vector..][..4].try_into().unwrap();
            let shifted = nibbles[vector & 3] >> (if vector >= 4 { 4 } else { 0 });
            assert_eq!((shifted & 0x0f0f_0f0f).to_le_bytes(), four.map(|code| code & 15));
            let shifted = pairs[vector & 1] >> (2 * (vector / 2));
            assert_eq!((shifted & 0x0303_0303).to_le_bytes(), four.map(|code| code & 3));
            assert_eq!((bits >> vector & 0x0101_0101).to_le_bytes(), four.map(|code| code & 1));
        }
    }

    #[test]
    fn fifth_bits_return_to_their_elements() {
        let codes = codes();
        let high = fifth_bits(&codes);
        for (element, code) in codes.iter().enumerate() {
            assert_eq!(fifth_bit(high, element), code & 16);
        }
    }

    #[test]
    fn the_farthest_value_is_the_first_of_equals() {
        assert_eq!(farthest(&[1.0, -3.0, 3.0]), -3.0);
        assert_eq!(farthest(&[f32::NAN, 0.5]), 0.5);
        assert_eq!((range(&[2.0, -1.0, 4.0]), inverse(0.0)), ((-1.0, 4.0), 0.0));
    }
}
