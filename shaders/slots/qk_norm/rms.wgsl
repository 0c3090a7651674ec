//! slot reduce
// RMSNorm of each head, with one weight vector for queries and one for keys, stored one after the other.

@group(0) @binding(6) var<storage, read> head_norms: array<f32>;

fn head_scale(squares: f32, lane: u32) -> f32 {
    return inverseSqrt(reduce_add(squares, lane) / f32(HEAD_DIM) + EPS);
}

fn head_weight(key: bool, element: u32) -> f32 {
    return head_norms[select(0u, HEAD_DIM, key) + element];
}
