//! F16: half-precision weights.

use super::codes::set_words;
use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// 32 little-endian f16. On the device: pairs in one u32, the earlier column in the low half.
pub struct F16;

impl QuantFormat for F16 {
    fn dtype(&self) -> DType {
        DType::F16
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 16, scale: ScaleKind::None, bit_words: 0 }
    }

    fn decode(&self, unit: &[u8], _block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        for (value, bytes) in out.iter_mut().zip(unit.chunks_exact(2)) {
            *value = half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
        }
    }

    fn repack(&self, unit: &[u8], _block: usize, out: &mut PackedBlock) {
        set_words(&mut out.codes, unit);
    }
}
