//! Q6_K: `w = d * s * (q - 32)`, q of six bits, s a signed byte. Layout and definition as in ggml.

use super::codes::{Codes, f16_at, pack_nibbles, pack_pairs, u16_at};
use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// A super-block `{ q: [u8; 128], h: [u8; 64], s: [i8; 16], d: f16 }`. Each half of 128 columns has 64 bytes of q, of which
/// byte l holds column l (low nibble) and l + 64 (high), and 32 bytes of h, of which byte l holds the upper two bits of
/// columns l, l + 32, l + 64 and l + 96. Scale j serves columns 16 j and on.
///
/// On the device: nibbles as in Q4_0, two words of high bits a block, two inner scales.
#[allow(non_camel_case_types)]
pub struct Q6_K;

impl QuantFormat for Q6_K {
    fn dtype(&self) -> DType {
        DType::Q6_K
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 4, scale: ScaleKind::SuperBlock { inner: 2 }, bit_words: 2 }
    }

    fn decode(&self, unit: &[u8], block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        let scale = f16_at(unit, 208);
        for (column, (value, code)) in out.iter_mut().zip(codes(unit, block)).enumerate() {
            let inner = f32::from(unit[192 + 2 * block + column / 16] as i8);
            *value = scale * inner * (f32::from(code) - 32.0);
        }
    }

    fn repack(&self, unit: &[u8], block: usize, out: &mut PackedBlock) {
        let codes = codes(unit, block);
        (out.scale, out.min) = (u16_at(unit, 208), 0);
        out.inner = [unit[192 + 2 * block], unit[192 + 2 * block + 1]];
        out.codes[..4].copy_from_slice(&pack_nibbles(&codes));
        out.bits = pack_pairs(&codes.map(|code| code >> 4));
    }
}

fn codes(unit: &[u8], block: usize) -> Codes {
    let (half, quarter) = (block / 4, block % 4);
    let low = &unit[64 * half + 32 * (quarter % 2)..];
    let high = &unit[128 + 32 * half..];
    std::array::from_fn(|column| (low[column] >> (4 * (quarter / 2)) & 15) | (high[column] >> (2 * quarter) & 3) << 4)
}
