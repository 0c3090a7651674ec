//! Q5_1: `w = d * q + m`, q of five bits. Layout, definition and rounding as in ggml.

use super::codes::{
    f16_at, fifth_bit, fifth_bits, inverse, nibble, range, set_f16, set_nibbles, set_words, u16_at, u32_at,
};
use super::{BLOCK_COLUMNS, Encoder, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// `{ d: f16, m: f16, h: u32, q: [u8; 16] }`: byte i holds the low bits of element i and, in the high nibble, of i + 16;
/// bit i of h is the fifth bit of element i. On the device: the bytes in file order, h in the `bits` plane.
pub struct Q5_1;

impl QuantFormat for Q5_1 {
    fn dtype(&self) -> DType {
        DType::Q5_1
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 4, scale: ScaleKind::ScaleMin, bit_words: 1 }
    }

    fn decode(&self, unit: &[u8], _block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        let (scale, min, high) = (f16_at(unit, 0), f16_at(unit, 2), u32_at(unit, 4));
        for (element, value) in out.iter_mut().enumerate() {
            *value = scale * (nibble(&unit[8..], element) | fifth_bit(high, element)) as f32 + min;
        }
    }

    fn repack(&self, unit: &[u8], _block: usize, out: &mut PackedBlock) {
        (out.scale, out.min) = (u16_at(unit, 0), u16_at(unit, 2));
        out.bits[0] = u32_at(unit, 4);
        set_words(&mut out.codes, &unit[8..]);
    }

    fn encoder(&self) -> Option<Encoder> {
        Some(|values, unit| {
            let (low, high) = range(values);
            let scale = (high - low) / 31.0;
            let inverse = inverse(scale);
            set_f16(unit, 0, scale);
            set_f16(unit, 2, low);
            let codes = values.map(|x| (((x - low) * inverse + 0.5) as u8).min(31));
            unit[4..8].copy_from_slice(&fifth_bits(&codes).to_le_bytes());
            set_nibbles(&mut unit[8..], &codes);
        })
    }
}
