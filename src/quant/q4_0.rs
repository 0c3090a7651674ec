//! Q4_0: `w = d * (q - 8)`, q of four bits. Layout, definition and rounding as in ggml.

use super::codes::{f16_at, farthest, inverse, nibble, set_f16, set_nibbles, set_words, u16_at};
use super::{BLOCK_COLUMNS, Encoder, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// `{ d: f16, q: [u8; 16] }`: byte i holds element i (low nibble) and i + 16 (high). On the device: the bytes in file
/// order.
pub struct Q4_0;

impl QuantFormat for Q4_0 {
    fn dtype(&self) -> DType {
        DType::Q4_0
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 4, scale: ScaleKind::Scale, bit_words: 0 }
    }

    fn decode(&self, unit: &[u8], _block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        let scale = f16_at(unit, 0);
        for (element, value) in out.iter_mut().enumerate() {
            *value = scale * (nibble(&unit[2..], element) as f32 - 8.0);
        }
    }

    fn repack(&self, unit: &[u8], _block: usize, out: &mut PackedBlock) {
        out.scale = u16_at(unit, 0);
        set_words(&mut out.codes, &unit[2..]);
    }

    fn encoder(&self) -> Option<Encoder> {
        Some(|values, unit| {
            // The farthest value becomes code 0, so that it is met exactly whatever its sign.
            let scale = farthest(values) / -8.0;
            let inverse = f64::from(inverse(scale));
            set_f16(unit, 0, scale);
            // ggml writes x * inverse + 8.5, which compilers fuse where they can; so do we, by way of f64.
            set_nibbles(&mut unit[2..], &values.map(|x| ((f64::from(x) * inverse + 8.5) as f32 as u8).min(15)));
        })
    }
}
