//! Q5_0: `w = d * (q - 16)`, q of five bits. Layout, definition and rounding as in ggml.

use super::codes::{
    f16_at, farthest, fifth_bit, fifth_bits, inverse, nibble, set_f16, set_nibbles, set_words, u16_at, u32_at,
};
use super::{BLOCK_COLUMNS, Encoder, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// `{ d: f16, h: u32, q: [u8; 16] }`: byte i holds the low bits of element i and, in the high nibble, of i + 16; bit i
/// of h is the fifth bit of element i. On the device: the bytes in file order, h in the `bits` plane.
pub struct Q5_0;

impl QuantFormat for Q5_0 {
    fn dtype(&self) -> DType {
        DType::Q5_0
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 4, scale: ScaleKind::Scale, bit_words: 1 }
    }

    fn decode(&self, unit: &[u8], _block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        let (scale, high) = (f16_at(unit, 0), u32_at(unit, 2));
        for (element, value) in out.iter_mut().enumerate() {
            *value = scale * ((nibble(&unit[6..], element) | fifth_bit(high, element)) as f32 - 16.0);
        }
    }

    fn repack(&self, unit: &[u8], _block: usize, out: &mut PackedBlock) {
        out.scale = u16_at(unit, 0);
        out.bits[0] = u32_at(unit, 2);
        set_words(&mut out.codes, &unit[6..]);
    }

    fn encoder(&self) -> Option<Encoder> {
        Some(|values, unit| {
            let scale = farthest(values) / -16.0;
            let inverse = f64::from(inverse(scale));
            set_f16(unit, 0, scale);
            // Fused as in q4_0.
            let codes = values.map(|x| ((f64::from(x) * inverse + 16.5) as f32 as u8).min(31));
            unit[2..6].copy_from_slice(&fifth_bits(&codes).to_le_bytes());
            set_nibbles(&mut unit[6..], &codes);
        })
    }
}
