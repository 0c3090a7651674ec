//! Q4_K: `w = d * s * q - m * t`, q of four bits, s and t of six. Layout and definition as in ggml.

use super::codes::{Codes, f16_at, pack_nibbles, u16_at};
use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// A super-block `{ d: f16, m: f16, st: [u8; 12], q: [u8; 128] }`: byte l of the n-th quarter of q holds column l of block
/// 2n (low nibble) and of block 2n + 1 (high); [`inner_scales`] reads st.
///
/// On the device: nibbles as in Q4_0, s and t as inner scales.
#[allow(non_camel_case_types)]
pub struct Q4_K;

impl QuantFormat for Q4_K {
    fn dtype(&self) -> DType {
        DType::Q4_K
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 4, scale: ScaleKind::SuperBlock { inner: 2 }, bit_words: 0 }
    }

    fn decode(&self, unit: &[u8], block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        let [s, t] = inner_scales(&unit[4..], block).map(f32::from);
        let (scale, min) = (f16_at(unit, 0) * s, f16_at(unit, 2) * t);
        for (value, code) in out.iter_mut().zip(nibbles(&unit[16..], block)) {
            *value = scale * f32::from(code) - min;
        }
    }

    fn repack(&self, unit: &[u8], block: usize, out: &mut PackedBlock) {
        (out.scale, out.min) = (u16_at(unit, 0), u16_at(unit, 2));
        out.inner = inner_scales(&unit[4..], block);
        out.codes[..4].copy_from_slice(&pack_nibbles(&nibbles(&unit[16..], block)));
    }
}

/// Low four bits of the codes of a block.
pub(super) fn nibbles(bytes: &[u8], block: usize) -> Codes {
    let bytes = &bytes[32 * (block / 2)..];
    std::array::from_fn(|column| bytes[column] >> (4 * (block % 2)) & 15)
}

/// Scale and minimum of a block, six bits each. Those of the first four blocks stand in the low six bits of bytes 0 to 3
/// and 4 to 7; those of the others have four bits in the nibbles of bytes 8 to 11 and two on top of the former.
pub(super) fn inner_scales(bytes: &[u8], block: usize) -> [u8; 2] {
    match block < 4 {
        true => [bytes[block] & 63, bytes[block + 4] & 63],
        false => {
            let low = bytes[block + 4];
            [(low & 15) | bytes[block - 4] >> 6 << 4, low >> 4 | bytes[block] >> 6 << 4]
        }
    }
}
