//! Twin of `embed`: the embedding row of a token.

use crate::base::TokenId;

/// Row `token` of the embedding matrix, `columns` wide. `weights(row, out)` writes a row of the matrix.
pub fn embed(weights: &dyn Fn(usize, &mut [f32]), columns: usize, token: TokenId) -> Vec<f64> {
    let mut row = vec![0.0f32; columns];
    weights(token as usize, &mut row);
    row.iter().map(|&value| f64::from(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_the_row() {
        let weights = |row: usize, out: &mut [f32]| out.fill(row as f32 + 0.5);
        assert_eq!(embed(&weights, 3, 7), [7.5, 7.5, 7.5]);
    }
}
