//! Q4_1: `w = d * q + m`, q of four bits. Layout and definition as in GGUF.

use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind, f16_at, nibble, u16_at};
use crate::base::DType;

/// `{ d: f16, m: f16, q: [u8; 16] }`: byte i holds element i (low nibble) and i + 16 (high). On the device: the bytes in
/// file order.
pub struct Q4_1;

impl QuantFormat for Q4_1 {
    fn dtype(&self) -> DType {
        DType::Q4_1
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_vectors: 1, scale: ScaleKind::ScaleMin, bits: false }
    }

    fn decode(&self, block: &[u8], out: &mut [f32; BLOCK_COLUMNS]) {
        let (scale, min) = (f16_at(block, 0), f16_at(block, 2));
        for (element, value) in out.iter_mut().enumerate() {
            *value = scale * nibble(&block[4..], element) as f32 + min;
        }
    }

    fn repack(&self, block: &[u8], out: &mut PackedBlock) {
        (out.scale, out.min) = (u16_at(block, 0), u16_at(block, 2));
        out.set_codes(&block[4..]);
    }
}
