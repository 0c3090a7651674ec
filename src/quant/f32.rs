//! F32: plain single-precision weights.

use super::codes::set_words;
use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// 32 little-endian f32. On the device: the same 32 bit patterns, four to a vector.
pub struct F32;

impl QuantFormat for F32 {
    fn dtype(&self) -> DType {
        DType::F32
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 32, scale: ScaleKind::None, bit_words: 0 }
    }

    fn decode(&self, unit: &[u8], _block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        for (value, bytes) in out.iter_mut().zip(unit.chunks_exact(4)) {
            *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }

    fn repack(&self, unit: &[u8], _block: usize, out: &mut PackedBlock) {
        set_words(&mut out.codes, unit);
    }
}
