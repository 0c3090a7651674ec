//! What KV entries are rounded to when they are stored.

use crate::quant::q8_entries::Q8Block;

/// What KV entries are rounded to when they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPrecision {
    /// Not rounded.
    F64,
    /// To the nearest f16, as the device does with `--kv-dtype f16`.
    F16,
    /// To 255 steps for each 32 elements of a head, as the device does with `--kv-dtype q8_0`.
    Q8_0,
}

impl KvPrecision {
    /// Rounds a row of whole heads. By way of f32, which is what the kernel rounds.
    ///
    /// # Panics
    /// Heads are no whole blocks of 32, in [`KvPrecision::Q8_0`].
    pub(super) fn round(self, row: &mut [f64]) {
        match self {
            Self::F64 => {}
            Self::F16 => row.iter_mut().for_each(|value| *value = half::f16::from_f32(*value as f32).to_f64()),
            Self::Q8_0 => {
                let (blocks, rest) = row.as_chunks_mut();
                assert!(rest.is_empty(), "heads are whole blocks of 32");
                for block in blocks {
                    *block = Q8Block::new(&block.map(|value| value as f32)).values().map(f64::from);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(precision: KvPrecision, row: &[f64]) -> Vec<f64> {
        let mut row = row.to_vec();
        precision.round(&mut row);
        row
    }

    #[test]
    fn f16_goes_to_the_nearest_and_to_the_even_one() {
        // Halfway between 2048 and 2050: to the even one.
        let row = [1.0 / 3.0, 0.5, 2049.0, -0.1];
        assert_eq!(rounded(KvPrecision::F16, &row), [0.333251953125, 0.5, 2048.0, -0.0999755859375]);
        assert_eq!(rounded(KvPrecision::F64, &row), row);
    }

    #[test]
    fn blocks_of_eight_bits_are_rounded_by_themselves() {
        let mut row = vec![0.3; 64];
        row[0] = 127.0;
        row[40] = -254.0;
        let mut expected = vec![0.0; 64];
        (expected[0], expected[40]) = (127.0, -254.0);
        assert_eq!(rounded(KvPrecision::Q8_0, &row), expected);
        // The second block alone is what it was beside the first.
        assert_eq!(rounded(KvPrecision::Q8_0, &row[32..]), expected[32..]);
    }
}
