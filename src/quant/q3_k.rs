//! Q3_K: `w = d * (s - 32) * (q - 4)`, q of three bits, s of six. Layout and definition as in ggml.

use super::codes::{Codes, f16_at, pack_bits, pack_pairs, u16_at};
use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// A super-block `{ h: [u8; 32], q: [u8; 64], s: [u8; 12], d: f16 }`: q as in Q2_K, bit b of byte l of h is the third bit of
/// column l of block b, and s holds sixteen scales, each for 16 columns: four bits of scale j in byte `j % 8`, two more in
/// byte `8 + j % 4`.
///
/// On the device: two words of low bits and one of high bits a block, `s - 32` as inner scales.
#[allow(non_camel_case_types)]
pub struct Q3_K;

impl QuantFormat for Q3_K {
    fn dtype(&self) -> DType {
        DType::Q3_K
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 2, scale: ScaleKind::SuperBlock { inner: 2 }, bit_words: 1 }
    }

    fn decode(&self, unit: &[u8], block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        let scale = f16_at(unit, 108);
        for (column, (value, code)) in out.iter_mut().zip(codes(unit, block)).enumerate() {
            let inner = f32::from(inner_scale(unit, 2 * block + column / 16));
            *value = scale * inner * (f32::from(code) - 4.0);
        }
    }

    fn repack(&self, unit: &[u8], block: usize, out: &mut PackedBlock) {
        let codes = codes(unit, block);
        (out.scale, out.min) = (u16_at(unit, 108), 0);
        out.inner = [0, 1].map(|half| inner_scale(unit, 2 * block + half) as u8);
        out.codes[..2].copy_from_slice(&pack_pairs(&codes));
        out.bits[0] = pack_bits(&codes.map(|code| code >> 2));
    }
}

fn codes(unit: &[u8], block: usize) -> Codes {
    let (high, low) = (&unit[..32], &unit[32 + 32 * (block / 4)..]);
    std::array::from_fn(|column| (low[column] >> (2 * (block % 4)) & 3) | (high[column] >> block & 1) << 2)
}

fn inner_scale(unit: &[u8], index: usize) -> i8 {
    let bytes = &unit[96..108];
    let low = bytes[index % 8] >> (4 * (index / 8)) & 15;
    let high = bytes[8 + index % 4] >> (2 * (index / 4)) & 3;
    (low | high << 4) as i8 - 32
}
