//! Twin of `rope_kv`: splits a row of fused projections, normalises query and key heads where the model does, and
//! rotates them. Storing key and value through the block table is the work of [`kv`](super::kv).

use super::norm::rms_norm;
use crate::model::spec::{AttnSpec, QkNorm};

/// One token's heads, ready for attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotated {
    /// `[heads][head_dim]`.
    pub query: Vec<f64>,
    /// `[kv_heads][head_dim]`, as stored in KV memory.
    pub key: Vec<f64>,
    /// `[kv_heads][head_dim]`, as stored in KV memory.
    pub value: Vec<f64>,
}

/// Rotates a head in place, in rotate-half form: with d pairs in `cos_sin` (the table's row for one position), element
/// i and element i + d turn by the i-th angle, for i below d; elements from 2d on stay (Su et al. 2021; pairing as in
/// the Hugging Face models).
pub fn rotate(head: &mut [f64], cos_sin: &[[f32; 2]]) {
    let half = cos_sin.len();
    assert!(2 * half <= head.len(), "the rotary width {} exceeds the head's {}", 2 * half, head.len());
    for (i, &[cos, sin]) in cos_sin.iter().enumerate() {
        let (cos, sin) = (f64::from(cos), f64::from(sin));
        let (a, b) = (head[i], head[i + half]);
        head[i] = a * cos - b * sin;
        head[i + half] = b * cos + a * sin;
    }
}

/// The whole kernel for one token. `row` is `[query | key | value]` with biases added; the norms are the weights of the
/// query and key norms, `[head_dim]` or, over whole rows, `[heads * head_dim]`, and are used where `spec.qk_norm` is set.
/// `cos_sin` is empty where nothing rotates.
pub fn rope_kv(row: &[f64], spec: &AttnSpec, query_norm: &[f32], key_norm: &[f32], cos_sin: &[[f32; 2]]) -> Rotated {
    let (query, rest) = row.split_at(spec.query_width());
    let (key, value) = rest.split_at(spec.kv_width());
    assert_eq!(value.len(), spec.kv_width(), "a fused row is query, key and value");
    let rotated = |heads: &[f64], weight: &[f32]| {
        let mut out: Vec<f64> = match spec.qk_norm {
            None => heads.to_vec(),
            Some(QkNorm { norm, whole_row: true }) => rms_norm(heads, weight, norm.eps),
            Some(QkNorm { norm, whole_row: false }) => {
                heads.chunks(spec.head_dim).flat_map(|head| rms_norm(head, weight, norm.eps)).collect()
            }
        };
        out.chunks_mut(spec.head_dim).for_each(|head| rotate(head, cos_sin));
        out
    };
    Rotated { query: rotated(query, query_norm), key: rotated(key, key_norm), value: value.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::spec::NormSpec;

    #[test]
    fn pairs_are_half_the_rotary_width_apart_and_the_tail_stays() {
        let mut head = [1.0, 2.0, 3.0, 4.0, 5.0];
        // A quarter turn of the first pair, none of the second.
        rotate(&mut head, &[[0.0, 1.0], [1.0, 0.0]]);
        assert_eq!(head, [-3.0, 2.0, 1.0, 4.0, 5.0]);
    }

    #[test]
    fn values_are_neither_normalised_nor_rotated() {
        let qk_norm = Some(QkNorm { norm: NormSpec::rms(0.0), whole_row: false });
        let spec = AttnSpec { qk_norm, ..AttnSpec::plain(2, 1, 2) };
        let row = [3.0, 3.0, -5.0, 5.0, 0.5, -0.5, 7.0, 9.0];
        let Rotated { query, key, value } = rope_kv(&row, &spec, &[1.0, 2.0], &[4.0, 1.0], &[[0.0, 1.0]]);
        assert_eq!(query, [-2.0, 1.0, -2.0, -1.0]);
        assert_eq!(key, [1.0, 4.0]);
        assert_eq!(value, [7.0, 9.0]);
    }

    #[test]
    fn a_norm_over_the_whole_row_sees_all_heads() {
        let qk_norm = Some(QkNorm { norm: NormSpec::rms(0.0), whole_row: true });
        let spec = AttnSpec { qk_norm, ..AttnSpec::plain(2, 1, 2) };
        // The root of the mean square of 0, 0, 4, 0 is 2; nothing rotates.
        let row = [0.0, 0.0, 4.0, 0.0, 4.0, 4.0, 9.0, 9.0];
        let Rotated { query, key, .. } = rope_kv(&row, &spec, &[5.0, 10.0, 5.0, 5.0], &[1.0, 2.0], &[]);
        assert_eq!(query, [0.0, 0.0, 10.0, 0.0]);
        assert_eq!(key, [1.0, 2.0]);
    }
}
