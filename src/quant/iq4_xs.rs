//! IQ4_XS: `w = d * (s - 32) * LEVELS[q]`, q of four bits, s of six. Layout and definition as in ggml.

use super::codes::{f16_at, nibble, set_words, u16_at};
use super::iq4_nl::LEVELS;
use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// A super-block `{ d: f16, h: u16, l: [u8; 4], q: [u8; 128] }`: s of block b has its low four bits in nibble b of l and its
/// upper two at bit 2 b of h; each block has 16 bytes of q, whose byte i holds element i (low nibble) and i + 16 (high).
///
/// On the device: the bytes of q in file order, `s - 32` as inner scale.
#[allow(non_camel_case_types)]
pub struct IQ4_XS;

impl QuantFormat for IQ4_XS {
    fn dtype(&self) -> DType {
        DType::IQ4_XS
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 4, scale: ScaleKind::SuperBlock { inner: 1 }, bit_words: 0 }
    }

    fn decode(&self, unit: &[u8], block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        let scale = f16_at(unit, 0) * f32::from(inner_scale(unit, block));
        let bytes = &unit[8 + 16 * block..];
        for (element, value) in out.iter_mut().enumerate() {
            *value = scale * f32::from(LEVELS[usize::from(nibble(bytes, element))]);
        }
    }

    fn repack(&self, unit: &[u8], block: usize, out: &mut PackedBlock) {
        (out.scale, out.min) = (u16_at(unit, 0), 0);
        out.inner[0] = inner_scale(unit, block) as u8;
        set_words(&mut out.codes, &unit[8 + 16 * block..][..16]);
    }
}

fn inner_scale(unit: &[u8], block: usize) -> i8 {
    let low = unit[4 + block / 2] >> (4 * (block % 2)) & 15;
    let high = (u16_at(unit, 2) >> (2 * block) & 3) as u8;
    (low | high << 4) as i8 - 32
}
