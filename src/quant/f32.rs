//! F32: plain single-precision weights.

use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// 32 little-endian f32. On the device: the same 32 bit patterns, four to a vector.
pub struct F32;

impl QuantFormat for F32 {
    fn dtype(&self) -> DType {
        DType::F32
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_vectors: 8, scale: ScaleKind::None, bits: false }
    }

    fn decode(&self, block: &[u8], out: &mut [f32; BLOCK_COLUMNS]) {
        for (value, bytes) in out.iter_mut().zip(block.chunks_exact(4)) {
            *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }

    fn repack(&self, block: &[u8], out: &mut PackedBlock) {
        out.set_codes(block);
    }
}
