//! Twin of `embed`: the embedding row of a token, scaled, and the learned vector of its position.

use crate::base::TokenId;

/// Row `token` of the embedding matrix, `columns` wide. `weights(row, out)` writes a row of the matrix.
pub fn embed(weights: &dyn Fn(usize, &mut [f32]), columns: usize, token: TokenId) -> Vec<f64> {
    let mut row = vec![0.0f32; columns];
    weights(token as usize, &mut row);
    row.iter().map(|&value| f64::from(value)).collect()
}

/// [`embed`] times `scale`, plus the learned vector of the token's position, if the model has them.
pub fn embed_at(
    weights: &dyn Fn(usize, &mut [f32]),
    columns: usize,
    token: TokenId,
    scale: f32,
    position: Option<&[f32]>,
) -> Vec<f64> {
    let mut row = embed(weights, columns, token);
    row.iter_mut().for_each(|value| *value *= f64::from(scale));
    for (value, &learned) in row.iter_mut().zip(position.unwrap_or_default()) {
        *value += f64::from(learned);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_the_row() {
        let weights = |row: usize, out: &mut [f32]| out.fill(row as f32 + 0.5);
        assert_eq!(embed(&weights, 3, 7), [7.5, 7.5, 7.5]);
    }

    #[test]
    fn the_scale_comes_before_the_position() {
        let weights = |row: usize, out: &mut [f32]| out.fill(row as f32 + 0.5);
        assert_eq!(embed_at(&weights, 2, 7, 2.0, Some(&[1.0, -1.0])), [16.0, 14.0]);
        assert_eq!(embed_at(&weights, 2, 7, 1.0, None), [7.5, 7.5]);
    }
}
