//! Q8_0: `w = d * q`, q a signed byte. Layout, definition and rounding as in ggml.

use super::codes::{f16_at, farthest, inverse, set_f16, set_words, u16_at};
use super::{BLOCK_COLUMNS, Encoder, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// `{ d: f16, q: [i8; 32] }`. On the device: the 32 bytes in file order.
pub struct Q8_0;

impl QuantFormat for Q8_0 {
    fn dtype(&self) -> DType {
        DType::Q8_0
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 8, scale: ScaleKind::Scale, bit_words: 0 }
    }

    fn decode(&self, unit: &[u8], _block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        let scale = f16_at(unit, 0);
        for (value, &code) in out.iter_mut().zip(&unit[2..]) {
            *value = scale * f32::from(code as i8);
        }
    }

    fn repack(&self, unit: &[u8], _block: usize, out: &mut PackedBlock) {
        out.scale = u16_at(unit, 0);
        set_words(&mut out.codes, &unit[2..]);
    }

    fn encoder(&self) -> Option<Encoder> {
        Some(|values, unit| {
            let scale = farthest(values).abs() / 127.0;
            let inverse = inverse(scale);
            set_f16(unit, 0, scale);
            for (code, value) in unit[2..].iter_mut().zip(values) {
                // Half a step goes away from zero.
                *code = (value * inverse).round() as i8 as u8;
            }
        })
    }
}
