//! Twin of `quantize`, and of every kernel that leaves its rows as int12.

use crate::quant::int12_rows::{BLOCK_WORDS, Int12Block, LARGEST_CODE, SMALLEST};

/// Whether `words` are the row `x` as int12: each scale is a 2047th of the largest magnitude of its block, each code the nearest
/// multiple of it, the sums are those of the codes, and the rest is zero. `error` says how far each element of `x` may be off;
/// for nothing but the arithmetic of quantising some units in the last place are allowed on top.
///
/// # Errors
/// Says which block or element is wrong.
pub fn check_row(words: &[u32], x: &[f64], error: &[f64]) -> Result<(), String> {
    match words.as_chunks().0.iter().position(|words| Int12Block::from_words(words).squares != 0.0) {
        Some(index) => Err(format!("block {index} has a sum of squares, but its row lacks nothing")),
        None => check_left_row(words, x, error),
    }
}

/// [`check_row`] for rows that still lack the factor of their norm, whose blocks carry sums of squares besides.
///
/// # Errors
/// As [`check_row`].
pub fn check_left_row(words: &[u32], x: &[f64], error: &[f64]) -> Result<(), String> {
    assert_eq!((words.len(), error.len()), (x.len() / 32 * BLOCK_WORDS, x.len()), "rows are whole blocks");
    let blocks = words.as_chunks::<BLOCK_WORDS>().0.iter().zip(x.chunks(32).zip(error.chunks(32)));
    for (index, (words, (x, error))) in blocks.enumerate() {
        let block = Int12Block::from_words(words);
        if block.words() != *words {
            return Err(format!("block {index}: the sums do not belong to the codes, or the rest is not zero"));
        }
        if x.iter().any(|x| !x.is_finite()) {
            // Seen in every product, whatever the weights.
            if !block.scale.is_nan() || block.codes.iter().any(|code| *code != 0) {
                return Err(format!("block {index} has a number that is not finite, and hides it"));
            }
            continue;
        }
        let size = x.iter().fold(0.0, |size: f64, x| size.max(x.abs()));
        let scale = f64::from(block.scale);
        let widest = error.iter().fold(0.0, |widest: f64, error| widest.max(*error));
        if size < f64::from(SMALLEST) / 2.0 && scale == 0.0 {
            continue;
        }
        if (f64::from(LARGEST_CODE) * scale - size).abs() > widest + 1e-6 * size {
            return Err(format!("block {index}: scale {scale:e}, where the largest magnitude is {size:e}"));
        }
        for (column, ((value, x), error)) in block.values().iter().zip(x).zip(error).enumerate() {
            // A block's scale may be off as far as its largest element.
            if (value - x).abs() > 0.5 * scale + error + widest + 2e-7 * size {
                return Err(format!("block {index}, column {column}: {value:e} for {x:e} in steps of {scale:e}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantised_row_passes_and_a_code_that_is_off_by_one_does_not() {
        let x: [f32; 32] = std::array::from_fn(|column| ((column * 37) % 32) as f32 * 0.21 - 3.0);
        let exact = x.map(f64::from);
        let block = Int12Block::new(&x);
        assert_eq!(check_row(&block.words(), &exact, &[0.0; 32]), Ok(()));
        for column in [0, 17, 31] {
            let mut wrong = block;
            wrong.codes[column] -= if wrong.codes[column] > 0 { 1 } else { -1 };
            assert!(check_row(&wrong.words(), &exact, &[0.0; 32]).is_err(), "column {column}");
        }
        let wrong = Int12Block { scale: block.scale * 1.001, ..block };
        assert!(check_row(&wrong.words(), &exact, &[0.0; 32]).is_err());
        let mut wrong = block.words();
        wrong[5] ^= 1 << 16;
        assert!(check_row(&wrong, &exact, &[0.0; 32]).unwrap_err().contains("sums"));
    }
}
