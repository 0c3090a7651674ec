//! BF16: the upper half of an f32, so widening is exact.

use super::codes::set_words;
use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// 32 little-endian bf16. On the device: pairs in one u32, the earlier column in the low half.
pub struct BF16;

impl QuantFormat for BF16 {
    fn dtype(&self) -> DType {
        DType::BF16
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 16, scale: ScaleKind::None, bit_words: 0 }
    }

    fn decode(&self, unit: &[u8], _block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        for (value, bytes) in out.iter_mut().zip(unit.chunks_exact(2)) {
            *value = f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16);
        }
    }

    fn repack(&self, unit: &[u8], _block: usize, out: &mut PackedBlock) {
        set_words(&mut out.codes, unit);
    }
}
