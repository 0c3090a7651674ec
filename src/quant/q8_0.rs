//! Q8_0: `w = d * q`, q a signed byte. Layout and definition as in GGUF.

use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind, f16_at, u16_at};
use crate::base::DType;

/// `{ d: f16, q: [i8; 32] }`. On the device: the 32 bytes in file order.
pub struct Q8_0;

impl QuantFormat for Q8_0 {
    fn dtype(&self) -> DType {
        DType::Q8_0
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_vectors: 2, scale: ScaleKind::Scale, bits: false }
    }

    fn decode(&self, block: &[u8], out: &mut [f32; BLOCK_COLUMNS]) {
        let scale = f16_at(block, 0);
        for (value, &code) in out.iter_mut().zip(&block[2..]) {
            *value = scale * f32::from(code as i8);
        }
    }

    fn repack(&self, block: &[u8], out: &mut PackedBlock) {
        out.scale = u16_at(block, 0);
        out.set_codes(&block[2..]);
    }
}
