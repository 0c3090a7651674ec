//! IQ4_NL: `w = d * LEVELS[q]`, q of four bits, with levels that lie denser around zero. Layout and definition as in ggml.

use super::codes::{f16_at, nibble, set_words, u16_at};
use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// What the codes stand for. The shaders compute them: they are the roundings of a polynomial (see the tests), which takes
/// fewer operations than a table.
pub(super) const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// `{ d: f16, q: [u8; 16] }`: byte i holds element i (low nibble) and i + 16 (high). On the device: the bytes in file
/// order.
#[allow(non_camel_case_types)]
pub struct IQ4_NL;

impl QuantFormat for IQ4_NL {
    fn dtype(&self) -> DType {
        DType::IQ4_NL
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 4, scale: ScaleKind::Scale, bit_words: 0 }
    }

    fn decode(&self, unit: &[u8], _block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        let scale = f16_at(unit, 0);
        for (element, value) in out.iter_mut().enumerate() {
            *value = scale * f32::from(LEVELS[usize::from(nibble(&unit[2..], element))]);
        }
    }

    fn repack(&self, unit: &[u8], _block: usize, out: &mut PackedBlock) {
        out.scale = u16_at(unit, 0);
        set_words(&mut out.codes, &unit[2..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The polynomial of `shaders/slots/weights/iq4_*.wgsl`, fitted to have the smallest largest error. It stays so far from
    /// halves that no order of operations and no missing fma can change a level.
    #[test]
    fn the_levels_are_the_roundings_of_a_polynomial() {
        for (code, level) in LEVELS.into_iter().enumerate() {
            let x = code as f32;
            let value = (((0.001_586_04 * x + 0.031_086_4) * x - 1.371_93) * x + 24.1738) * x - 126.567;
            assert!((value - f32::from(level)).abs() < 0.44, "{code}: {value} is not near {level}");
        }
    }
}
