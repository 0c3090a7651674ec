//! Q5_K: `w = d * s * q - m * t`, q of five bits, s and t of six. Layout and definition as in ggml.

use super::codes::{Codes, f16_at, pack_bits, pack_nibbles, u16_at};
use super::q4_k::{inner_scales, nibbles};
use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// A super-block `{ d: f16, m: f16, st: [u8; 12], h: [u8; 32], q: [u8; 128] }`: st and q as in Q4_K, bit b of byte l of h is
/// the fifth bit of column l of block b.
///
/// On the device: as Q4_K, with a word of fifth bits a block.
#[allow(non_camel_case_types)]
pub struct Q5_K;

impl QuantFormat for Q5_K {
    fn dtype(&self) -> DType {
        DType::Q5_K
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 4, scale: ScaleKind::SuperBlock { inner: 2 }, bit_words: 1 }
    }

    fn decode(&self, unit: &[u8], block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        let [s, t] = inner_scales(&unit[4..], block).map(f32::from);
        let (scale, min) = (f16_at(unit, 0) * s, f16_at(unit, 2) * t);
        let codes = nibbles(&unit[48..], block).into_iter().zip(fifth_bits(unit, block));
        for (value, (low, high)) in out.iter_mut().zip(codes) {
            *value = scale * f32::from(low | high << 4) - min;
        }
    }

    fn repack(&self, unit: &[u8], block: usize, out: &mut PackedBlock) {
        (out.scale, out.min) = (u16_at(unit, 0), u16_at(unit, 2));
        out.inner = inner_scales(&unit[4..], block);
        out.codes[..4].copy_from_slice(&pack_nibbles(&nibbles(&unit[48..], block)));
        out.bits[0] = pack_bits(&fifth_bits(unit, block));
    }
}

fn fifth_bits(unit: &[u8], block: usize) -> Codes {
    std::array::from_fn(|column| unit[16 + column] >> block & 1)
}
