//! Weight formats: one file each, with the block layout of the file, its decoding and its repacking for the device.
//!
//! **Device layout.** A matrix `[rows, columns]` is cut into groups of [`GROUP_ROWS`] rows and blocks of
//! [`BLOCK_COLUMNS`] columns (both padded with zeros). For group `g`, block `b` of `blocks` and row `r` in the group:
//!
//! ```text
//! codes [((g * blocks + b) * code_vectors + v) * 32 + r]   four u32 each, v in 0..code_vectors
//! scales[ (g * scale_words + s) * 32 + r]                  one u32 each, s in 0..scale_words
//! bits  [ (g * blocks + b) * 32 + r]                       one u32 each, only for five-bit formats
//! ```
//!
//! so that neighbouring lanes, which own neighbouring rows, read neighbouring words, and a group streams from front to
//! back. `scale_words` is `blocks` where a block has a scale and a minimum (`scale | min << 16`, both f16), and
//! `ceil(blocks / 2)` where it has a scale only (block `2s` in the low half, `2s + 1` in the high half).

mod bf16;
mod f16;
mod f32;
mod q4_0;
mod q4_1;
mod q5_0;
mod q5_1;
mod q8_0;

use crate::base::DType;

/// Rows that are interleaved with each other.
pub const GROUP_ROWS: usize = 32;
/// Columns in one block of the device layout.
pub const BLOCK_COLUMNS: usize = 32;

/// One weight format.
pub trait QuantFormat: Sync {
    /// The format's type in files.
    fn dtype(&self) -> DType;

    /// The size of the device layout.
    fn planes(&self) -> PlaneShape;

    /// Decodes 32 consecutive columns of one row. This is the definition of the format; `block` holds exactly their
    /// bytes as they stand in the file.
    fn decode(&self, block: &[u8], out: &mut [f32; BLOCK_COLUMNS]);

    /// Repacks 32 consecutive columns of one row (`block` as in [`decode`](Self::decode)) for the device.
    fn repack(&self, block: &[u8], out: &mut PackedBlock);
}

/// Sizes of the device planes of a format, per block of 32 columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneShape {
    /// Vectors of four u32 in `codes`.
    pub code_vectors: usize,
    /// What `scales` holds.
    pub scale: ScaleKind,
    /// Whether there is a `bits` plane.
    pub bits: bool,
}

/// What a block's entry in the `scales` plane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleKind {
    /// Plain formats have none.
    None,
    /// One f16.
    Scale,
    /// Two f16: scale and minimum.
    ScaleMin,
}

/// One block of one row, ready for the planes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedBlock {
    /// `code_vectors * 4` valid words.
    pub codes: [u32; 32],
    /// f16 bits of the scale.
    pub scale: u16,
    /// f16 bits of the minimum.
    pub min: u16,
    /// The fifth bits.
    pub bits: u32,
}

/// The implementation of a format.
pub fn format(dtype: DType) -> &'static dyn QuantFormat {
    match dtype {
        DType::F32 => &f32::F32,
        DType::F16 => &f16::F16,
        DType::BF16 => &bf16::BF16,
        DType::Q8_0 => &q8_0::Q8_0,
        DType::Q4_0 => &q4_0::Q4_0,
        DType::Q4_1 => &q4_1::Q4_1,
        DType::Q5_0 => &q5_0::Q5_0,
        DType::Q5_1 => &q5_1::Q5_1,
    }
}

impl PackedBlock {
    /// Takes the code bytes over unchanged, four to a word, little end first.
    fn set_codes(&mut self, bytes: &[u8]) {
        for (word, bytes) in self.codes.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32_at(bytes, 0);
        }
    }
}

fn u16_at(block: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([block[offset], block[offset + 1]])
}

fn u32_at(block: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([block[offset], block[offset + 1], block[offset + 2], block[offset + 3]])
}

fn f16_at(block: &[u8], offset: usize) -> f32 {
    half::f16::from_bits(u16_at(block, offset)).to_f32()
}

/// Low four bits of `element` in the nibble order of GGUF's 32-element blocks.
fn nibble(codes: &[u8], element: usize) -> u8 {
    match element < BLOCK_COLUMNS / 2 {
        true => codes[element] & 0x0f,
        false => codes[element - BLOCK_COLUMNS / 2] >> 4,
    }
}

/// The fifth bit of `element`, in its place above a nibble.
fn fifth_bit(high: u32, element: usize) -> u8 {
    ((high >> element & 1) as u8) << 4
}
