//! Q4_0: `w = d * (q - 8)`, q of four bits. Layout and definition as in GGUF.

use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind, f16_at, nibble, u16_at};
use crate::base::DType;

/// `{ d: f16, q: [u8; 16] }`: byte i holds element i (low nibble) and i + 16 (high). On the device: the bytes in file
/// order.
pub struct Q4_0;

impl QuantFormat for Q4_0 {
    fn dtype(&self) -> DType {
        DType::Q4_0
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_vectors: 1, scale: ScaleKind::Scale, bits: false }
    }

    fn decode(&self, block: &[u8], out: &mut [f32; BLOCK_COLUMNS]) {
        let scale = f16_at(block, 0);
        for (element, value) in out.iter_mut().enumerate() {
            *value = scale * (nibble(&block[2..], element) as f32 - 8.0);
        }
    }

    fn repack(&self, block: &[u8], out: &mut PackedBlock) {
        out.scale = u16_at(block, 0);
        out.set_codes(&block[2..]);
    }
}
