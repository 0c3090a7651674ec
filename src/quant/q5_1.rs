//! Q5_1: `w = d * q + m`, q of five bits. Layout and definition as in GGUF.

use super::{
    BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind, f16_at, fifth_bit, nibble, u16_at, u32_at,
};
use crate::base::DType;

/// `{ d: f16, m: f16, h: u32, q: [u8; 16] }`: byte i holds the low bits of element i and, in the high nibble, of i + 16;
/// bit i of h is the fifth bit of element i. On the device: the bytes in file order, h in the `bits` plane.
pub struct Q5_1;

impl QuantFormat for Q5_1 {
    fn dtype(&self) -> DType {
        DType::Q5_1
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_vectors: 1, scale: ScaleKind::ScaleMin, bits: true }
    }

    fn decode(&self, block: &[u8], out: &mut [f32; BLOCK_COLUMNS]) {
        let (scale, min, high) = (f16_at(block, 0), f16_at(block, 2), u32_at(block, 4));
        for (element, value) in out.iter_mut().enumerate() {
            *value = scale * (nibble(&block[8..], element) | fifth_bit(high, element)) as f32 + min;
        }
    }

    fn repack(&self, block: &[u8], out: &mut PackedBlock) {
        (out.scale, out.min) = (u16_at(block, 0), u16_at(block, 2));
        out.bits = u32_at(block, 4);
        out.set_codes(&block[8..]);
    }
}
