//! Twin of `matmul`: packed weights times rows of activations.

/// `y[t][r] = sum over c of w[r][c] * x[t][c]`, and with each sum the sum of its terms' magnitudes, which bounds the
/// rounding error of any order of summation (see [`tolerance`](super::tolerance)).
///
/// `weights(row, out)` writes a row of `columns` values; `x` is `[tokens][columns]`; both results are
/// `[tokens][rows]`.
pub fn matmul(weights: &dyn Fn(usize, &mut [f32]), rows: usize, columns: usize, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    assert_eq!(x.len() % columns, 0, "activations are whole rows of {columns}");
    let tokens = x.len() / columns;
    let mut y = vec![0.0; tokens * rows];
    let mut magnitude = vec![0.0; tokens * rows];
    let mut weight = vec![0.0f32; columns];
    for row in 0..rows {
        weights(row, &mut weight);
        for token in 0..tokens {
            let (mut sum, mut sum_abs) = (0.0, 0.0);
            for (&w, &x) in weight.iter().zip(&x[token * columns..][..columns]) {
                let term = f64::from(w) * x;
                sum += term;
                sum_abs += term.abs();
            }
            y[token * rows + row] = sum;
            magnitude[token * rows + row] = sum_abs;
        }
    }
    (y, magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_result_belong_to_tokens() {
        let weights = |row: usize, out: &mut [f32]| out.copy_from_slice(&[[1.0, 2.0], [3.0, -4.0], [0.5, 0.0]][row]);
        let (y, magnitude) = matmul(&weights, 3, 2, &[10.0, 1.0, -1.0, 2.0]);
        assert_eq!(y, [12.0, 26.0, 5.0, 3.0, -11.0, -0.5]);
        assert_eq!(magnitude, [12.0, 34.0, 5.0, 5.0, 11.0, 0.5]);
    }

    #[test]
    fn no_tokens_give_no_rows() {
        assert_eq!(matmul(&|_, out| out.fill(1.0), 3, 2, &[]), (vec![], vec![]));
    }
}
