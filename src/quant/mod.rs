//! Weight formats: one file each, with the block layout of the file, its decoding, its repacking for the device and, for
//! formats that octavo writes itself, its encoding. Activations that meet them as int12 are [`int12_rows`]; entries of an 8-bit KV
//! cache are [`q8_entries`].
//!
//! A format's *unit* is what decodes by itself: 32 columns of one row, or a super-block of 256 that shares a scale. Either
//! way everything is read in blocks of [`BLOCK_COLUMNS`] columns, which functions name by their number in the unit.
//!
//! **Device layout.** A matrix `[rows, columns]` is cut into groups of [`GROUP_ROWS`] rows (the last one padded with zeros)
//! and blocks of [`BLOCK_COLUMNS`] columns. For group `g`, block `b` of `blocks` and row `r` in the group:
//!
//! ```text
//! codes [((g * blocks + b) * vectors + v) * 32 + r]   vectors of 2 or 4 u32, v in 0..vectors
//! scales[ (g * scale_words + s) * 32 + place of r]    one u32 each; see ScaleKind
//! bits  [ (g * blocks + b) * 32 + r]                  one u32 or two, only for formats with high bits apart
//! ```
//!
//! so that neighbouring lanes, which own neighbouring rows, read neighbouring words, and a group streams from front to
//! back. In a product eight lanes own the 32 rows of a group, in pairs: lane `l` rows `2 l`, `2 l + 1`, `2 l + 16` and
//! `2 l + 17`. Scales lie in that order, so that a lane reads its four at once.
//!
//! **Exactness.** A decoded weight is `scale * code` or `scale * code - minimum`, where every product of an f16 scale, an
//! inner scale of at most 8 bits and a code of at most 7 bits fits 24 bits and so is exact in f32. One rounding is left, that
//! of the subtraction, and the device gives the very f32 of [`QuantFormat::decode`] whether or not it fuses.

mod bf16;
mod codes;
mod f16;
mod f32;
pub mod int12_rows;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
pub mod q8_entries;

use crate::base::DType;

/// Rows that are interleaved with each other.
pub const GROUP_ROWS: usize = 32;
/// Columns in one block of the device layout.
pub const BLOCK_COLUMNS: usize = 32;
/// Columns that share the outer scale of a super-block format.
pub const SUPER_COLUMNS: usize = 256;
/// Blocks in a super-block.
const SUPER_BLOCKS: usize = SUPER_COLUMNS / BLOCK_COLUMNS;

/// One weight format.
pub trait QuantFormat: Sync {
    /// The format's type in files.
    fn dtype(&self) -> DType;

    /// The size of the device layout.
    fn planes(&self) -> PlaneShape;

    /// Decodes the 32 columns of `block` (its number in the unit). This is the definition of the format; `unit` holds
    /// exactly the bytes of one unit as they stand in the file.
    fn decode(&self, unit: &[u8], block: usize, out: &mut [f32; BLOCK_COLUMNS]);

    /// Repacks the 32 columns of `block` (arguments as in [`decode`](Self::decode)) for the device. Sets every part of `out`
    /// that [`planes`](Self::planes) says is used.
    fn repack(&self, unit: &[u8], block: usize, out: &mut PackedBlock);

    /// How 32 numbers become one unit of this format, if octavo can write it.
    fn encoder(&self) -> Option<Encoder> {
        None
    }

    /// Columns of a unit.
    fn unit_columns(&self) -> usize {
        self.dtype().block_elements().max(BLOCK_COLUMNS)
    }

    /// Bytes of a unit in the file.
    fn unit_bytes(&self) -> usize {
        self.unit_columns() / self.dtype().block_elements() * self.dtype().block_bytes()
    }
}

/// Writes one unit of `unit_bytes` bytes from 32 numbers, rounding as ggml's reference code does. Never fails: numbers that
/// are not finite give some block.
pub type Encoder = fn(values: &[f32; BLOCK_COLUMNS], unit: &mut [u8]);

/// Sizes of the device planes of a format, per block of 32 columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneShape {
    /// u32 in `codes`: 2, or a multiple of 4.
    pub code_words: usize,
    /// What `scales` holds.
    pub scale: ScaleKind,
    /// u32 in `bits`, 0 to 2.
    pub bit_words: usize,
}

impl PlaneShape {
    /// u32 in one vector of `codes`.
    pub fn vector_words(&self) -> usize {
        self.code_words.min(4)
    }

    /// u32 of a row of `blocks` blocks in `codes`, `scales` and `bits`.
    pub fn row_words(&self, blocks: usize) -> [usize; 3] {
        [blocks * self.code_words, self.scale.words(blocks), blocks * self.bit_words]
    }

    /// Bits that a weight takes on the device, scales and all, in rows of whole super-blocks.
    pub fn bits_per_weight(&self) -> f64 {
        let words: usize = self.row_words(SUPER_BLOCKS).iter().sum();
        (words * 32) as f64 / SUPER_COLUMNS as f64
    }
}

/// What the `scales` plane holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleKind {
    /// Plain formats have none.
    None,
    /// One f16 for each block: block `2s` in the low half of word `s`, `2s + 1` in the high half.
    Scale,
    /// Two f16 for each block, one word: `scale | min << 16`.
    ScaleMin,
    /// One biased exponent for each block, a byte: block `4s + n` in byte `n` of word `s`.
    Exponent,
    /// `1 + 2 * inner` words for each super-block: the two f16 of the whole, `scale | min << 16`, then `inner` bytes for each
    /// of its eight blocks, four bytes to a word.
    SuperBlock {
        /// 1, or 2.
        inner: usize,
    },
}

impl ScaleKind {
    /// u32 of a row of `blocks` blocks.
    pub fn words(self, blocks: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Scale => blocks.div_ceil(2),
            Self::ScaleMin => blocks,
            Self::Exponent => blocks.div_ceil(4),
            Self::SuperBlock { inner } => blocks.div_ceil(SUPER_BLOCKS) * (1 + 2 * inner),
        }
    }

    /// The words to which block `block` contributes, as (word of the row, its bits there).
    pub(crate) fn place(self, packed: &PackedBlock, block: usize) -> [Option<(usize, u32)>; 2] {
        let pair = u32::from(packed.scale) | u32::from(packed.min) << 16;
        match self {
            Self::None => [None, None],
            Self::Scale => [Some((block / 2, u32::from(packed.scale) << (16 * (block % 2)))), None],
            Self::ScaleMin => [Some((block, pair)), None],
            Self::Exponent => [Some((block / 4, u32::from(packed.inner[0]) << (8 * (block % 4)))), None],
            Self::SuperBlock { inner } => {
                let (start, at) = (block / SUPER_BLOCKS * (1 + 2 * inner), block % SUPER_BLOCKS * inner);
                let bytes = packed.inner[..inner].iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
                let outer = block.is_multiple_of(SUPER_BLOCKS).then_some((start, pair));
                [outer, Some((start + 1 + at / 4, bytes << (8 * (at % 4))))]
            }
        }
    }
}

/// One block of one row, ready for the planes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedBlock {
    /// `code_words` valid words.
    pub codes: [u32; 32],
    /// f16 bits of the scale, of the block or of its super-block.
    pub scale: u16,
    /// f16 bits of the minimum, likewise.
    pub min: u16,
    /// Inner scales of a super-block, or an exponent.
    pub inner: [u8; 2],
    /// High bits; `bit_words` valid words.
    pub bits: [u32; 2],
}

/// Every format, in the order of [`DType::ALL`].
pub const ALL: [&dyn QuantFormat; DType::ALL.len()] = [
    &f32::F32,
    &f16::F16,
    &bf16::BF16,
    &q8_0::Q8_0,
    &q4_0::Q4_0,
    &q4_1::Q4_1,
    &q5_0::Q5_0,
    &q5_1::Q5_1,
    &q2_k::Q2_K,
    &q3_k::Q3_K,
    &q4_k::Q4_K,
    &q5_k::Q5_K,
    &q6_k::Q6_K,
    &iq4_nl::IQ4_NL,
    &iq4_xs::IQ4_XS,
    &mxfp4::MXFP4,
];

/// The implementation of a format.
pub fn format(dtype: DType) -> &'static dyn QuantFormat {
    ALL[dtype as usize]
}

/// The formats that weights can be converted to when they are loaded.
pub fn encodable() -> impl Iterator<Item = DType> {
    ALL.iter().filter(|format| format.encoder().is_some()).map(|format| format.dtype())
}

/// Decodes consecutive elements. For block formats their number must be a multiple of the block; plain formats may end
/// anywhere.
///
/// # Panics
/// If `bytes` is not as long as `out` asks for: a bug of the caller.
pub fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let expected = out.len() / dtype.block_elements() * dtype.block_bytes();
    assert!(bytes.len() == expected, "{} elements of {dtype} are not {} bytes", out.len(), bytes.len());
    let format = format(dtype);
    // Only a plain format, of at most four bytes an element, can end within a unit.
    let mut padded = [0; 4 * BLOCK_COLUMNS];
    let mut decoded = [0.0; BLOCK_COLUMNS];
    for (unit, out) in bytes.chunks(format.unit_bytes()).zip(out.chunks_mut(format.unit_columns())) {
        let unit = match unit.len() == format.unit_bytes() {
            true => unit,
            false => {
                padded[..unit.len()].copy_from_slice(unit);
                &padded[..format.unit_bytes()]
            }
        };
        for (block, out) in out.chunks_mut(BLOCK_COLUMNS).enumerate() {
            format.decode(unit, block, &mut decoded);
            out.copy_from_slice(&decoded[..out.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_types() {
        for dtype in DType::ALL {
            assert_eq!(format(dtype).dtype(), dtype);
        }
        assert_eq!(encodable().map(DType::name).collect::<Vec<_>>(), ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"]);
    }

    /// What the README says.
    #[test]
    fn bits_of_a_weight_on_the_device() {
        let bits: Vec<_> = ALL.iter().map(|format| format.planes().bits_per_weight()).collect();
        let plain = [32.0, 16.0, 16.0, 8.5, 4.5, 5.0, 5.5, 6.0];
        let super_blocks = [2.625, 3.625, 4.625, 5.625, 6.625];
        assert_eq!(bits, [&plain[..], &super_blocks, &[4.5, 4.375, 4.25]].concat());
    }

    #[test]
    fn plain_formats_may_end_within_a_block() {
        let values: Vec<f32> = (0..37).map(|n| n as f32 - 7.5).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut decoded = vec![0.0; 37];
        decode(DType::F32, &bytes, &mut decoded);
        assert_eq!(decoded, values);
    }

    #[test]
    fn every_block_of_a_super_block_has_its_place_in_the_scales() {
        let kind = ScaleKind::SuperBlock { inner: 2 };
        let packed = PackedBlock { scale: 0x1111, min: 0x2222, inner: [0xaa, 0xbb], ..Default::default() };
        assert_eq!(kind.words(16), 10);
        assert_eq!(kind.place(&packed, 8), [Some((5, 0x2222_1111)), Some((6, 0xbbaa))]);
        assert_eq!(kind.place(&packed, 11), [None, Some((7, 0xbbaa_0000))]);
        let kind = ScaleKind::SuperBlock { inner: 1 };
        assert_eq!(kind.words(16), 6);
        assert_eq!(kind.place(&packed, 15), [None, Some((5, 0xaa00_0000))]);
        assert_eq!(ScaleKind::Exponent.place(&packed, 6), [Some((1, 0x00aa_0000)), None]);
    }
}
