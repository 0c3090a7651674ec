//! BF16: the upper half of an f32, so widening is exact.

use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// 32 little-endian bf16. On the device: pairs in one u32, the earlier column in the low half.
pub struct BF16;

impl QuantFormat for BF16 {
    fn dtype(&self) -> DType {
        DType::BF16
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_vectors: 4, scale: ScaleKind::None, bits: false }
    }

    fn decode(&self, block: &[u8], out: &mut [f32; BLOCK_COLUMNS]) {
        for (value, bytes) in out.iter_mut().zip(block.chunks_exact(2)) {
            *value = f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16);
        }
    }

    fn repack(&self, block: &[u8], out: &mut PackedBlock) {
        out.set_codes(block);
    }
}
