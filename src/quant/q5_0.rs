//! Q5_0: `w = d * (q - 16)`, q of five bits. Layout and definition as in GGUF.

use super::{
    BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind, f16_at, fifth_bit, nibble, u16_at, u32_at,
};
use crate::base::DType;

/// `{ d: f16, h: u32, q: [u8; 16] }`: byte i holds the low bits of element i and, in the high nibble, of i + 16; bit i
/// of h is the fifth bit of element i. On the device: the bytes in file order, h in the `bits` plane.
pub struct Q5_0;

impl QuantFormat for Q5_0 {
    fn dtype(&self) -> DType {
        DType::Q5_0
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_vectors: 1, scale: ScaleKind::Scale, bits: true }
    }

    fn decode(&self, block: &[u8], out: &mut [f32; BLOCK_COLUMNS]) {
        let (scale, high) = (f16_at(block, 0), u32_at(block, 2));
        for (element, value) in out.iter_mut().enumerate() {
            *value = scale * ((nibble(&block[6..], element) | fifth_bit(high, element)) as f32 - 16.0);
        }
    }

    fn repack(&self, block: &[u8], out: &mut PackedBlock) {
        out.scale = u16_at(block, 0);
        out.bits = u32_at(block, 2);
        out.set_codes(&block[6..]);
    }
}
