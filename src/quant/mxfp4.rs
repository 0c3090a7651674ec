//! MXFP4: `w = 2^(e - 127) * v`, v a float of one sign bit, two exponent bits and one of mantissa. Block format of the OCP
//! Microscaling specification; layout as in ggml.

use super::codes::{nibble, set_words};
use super::{BLOCK_COLUMNS, PackedBlock, PlaneShape, QuantFormat, ScaleKind};
use crate::base::DType;

/// Twice what the codes stand for, so that all are whole.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `{ e: u8, q: [u8; 16] }`: byte i holds element i (low nibble) and i + 16 (high). On the device: the bytes in file order,
/// e as exponent.
///
/// Blocks with e of 0 or 1, whose weights are all below 1e-37, are zero on the device: half their scale is no normal f32.
pub struct MXFP4;

impl QuantFormat for MXFP4 {
    fn dtype(&self) -> DType {
        DType::MXFP4
    }

    fn planes(&self) -> PlaneShape {
        PlaneShape { code_words: 4, scale: ScaleKind::Exponent, bit_words: 0 }
    }

    fn decode(&self, unit: &[u8], _block: usize, out: &mut [f32; BLOCK_COLUMNS]) {
        let half_scale = match unit[0] {
            // 2^-128 and 2^-127 have no exponent field of their own.
            small @ 0..2 => f32::from_bits(0x0020_0000 << small),
            exponent => f32::from_bits(u32::from(exponent - 1) << 23),
        };
        for (element, value) in out.iter_mut().enumerate() {
            *value = half_scale * f32::from(DOUBLED[usize::from(nibble(&unit[1..], element))]);
        }
    }

    fn repack(&self, unit: &[u8], _block: usize, out: &mut PackedBlock) {
        out.inner[0] = unit[0];
        set_words(&mut out.codes, &unit[1..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_powers_of_two_from_end_to_end() {
        for exponent in 0..=254 {
            let mut unit = [0x22; 17]; // code 2 is 1.0
            unit[0] = exponent;
            let mut out = [0.0; BLOCK_COLUMNS];
            MXFP4.decode(&unit, 0, &mut out);
            assert_eq!(f64::from(out[31]), 2f64.powi(i32::from(exponent) - 127));
        }
    }
}
