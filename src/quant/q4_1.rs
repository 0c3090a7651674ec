//! Q4_1: `w = d * q + m`, q of four bits. Layout, definition and rounding as in ggml.

use super::codes::{f16_at, inverse, nibble, range, set_f16, set_nibbles, set_words, u16_at};
use super::{BLOCK_COLUMNS, Encoder, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// `{ d: f16, m: f16, q: [u8; 16] }`: byte i holds element i (low nibble) and i + 16 (high). On the device: the bytes in
/// file order.
pub struct Q4_1;

impl QuantFormat for Q4_1 {
    fn dtype(&self) -> DType {
        DType::Q4_1
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 4, scale: ScaleKind::ScaleMin, bit_words: 0 }
    }

    fn decode(&self, unit: &[u8], _block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        let (scale, min) = (f16_at(unit, 0), f16_at(unit, 2));
        for (element, value) in out.iter_mut().enumerate() {
            *value = scale * nibble(&unit[4..], element) as f32 + min;
        }
    }

    fn repack(&self, unit: &[u8], _block: usize, out: &mut PackedBlock) {
        (out.scale, out.min) = (u16_at(unit, 0), u16_at(unit, 2));
        set_words(&mut out.codes, &unit[4..]);
    }

    fn encoder(&self) -> Option<Encoder> {
        Some(|values, unit| {
            let (low, high) = range(values);
            let scale = (high - low) / 15.0;
            let inverse = inverse(scale);
            set_f16(unit, 0, scale);
            set_f16(unit, 2, low);
            set_nibbles(&mut unit[4..], &values.map(|x| (((x - low) * inverse + 0.5) as u8).min(15)));
        })
    }
}
