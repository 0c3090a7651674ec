//! Q2_K: `w = d * s * q - m * t`, q of two bits, s and t of four. Layout and definition as in ggml.

use super::codes::{Codes, f16_at, pack_pairs, u16_at};
use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// A super-block `{ st: [u8; 16], q: [u8; 64], d: f16, m: f16 }`: byte j of st serves columns 16 j and on, s in its low
/// nibble and t in its high one; byte l of the n-th half of q holds columns l, l + 32, l + 64 and l + 96 of the n-th half.
///
/// On the device: two words of codes a block, both bytes of st as inner scales.
#[allow(non_camel_case_types)]
pub struct Q2_K;

impl QuantFormat for Q2_K {
    fn dtype(&self) -> DType {
        DType::Q2_K
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 2, scale: ScaleKind::SuperBlock { inner: 2 }, bit_words: 0 }
    }

    fn decode(&self, unit: &[u8], block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        let (scale, min) = (f16_at(unit, 80), f16_at(unit, 82));
        for (column, (value, code)) in out.iter_mut().zip(codes(unit, block)).enumerate() {
            let inner = unit[2 * block + column / 16];
            *value = scale * f32::from(inner & 15) * f32::from(code) - min * f32::from(inner >> 4);
        }
    }

    fn repack(&self, unit: &[u8], block: usize, out: &mut PackedBlock) {
        (out.scale, out.min) = (u16_at(unit, 80), u16_at(unit, 82));
        out.inner = [unit[2 * block], unit[2 * block + 1]];
        out.codes[..2].copy_from_slice(&pack_pairs(&codes(unit, block)));
    }
}

fn codes(unit: &[u8], block: usize) -> Codes {
    let bytes = &unit[16 + 32 * (block / 4)..];
    std::array::from_fn(|column| bytes[column] >> (2 * (block % 4)) & 3)
}
