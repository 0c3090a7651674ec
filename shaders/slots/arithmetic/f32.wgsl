//! slot weights batch
// Activations as they are: each product of a column is added by fma, from the first column to the last.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

// Rows as they are lack nothing.
var<private> squares: array<f32, TILE>;

fn add_squares(batch: Batch) {}

alias Sums = array<vec4<f32>, TILE>;

// The weights are four columns of four rows; `at` counts vectors of x.
fn add_columns(
    sums: ptr<function, Sums>,
    w0: vec4<f32>,
    w1: vec4<f32>,
    w2: vec4<f32>,
    w3: vec4<f32>,
    batch: Batch,
    at: u32,
) {
    for (var t = 0u; t < TILE; t++) {
        let v = x[input_at(batch, t) + at];
        var sum = (*sums)[t];
        sum = fma(vec4(w0.x, w1.x, w2.x, w3.x), vec4(v.x), sum);
        sum = fma(vec4(w0.y, w1.y, w2.y, w3.y), vec4(v.y), sum);
        sum = fma(vec4(w0.z, w1.z, w2.z, w3.z), vec4(v.z), sum);
        sum = fma(vec4(w0.w, w1.w, w2.w, w3.w), vec4(v.w), sum);
        (*sums)[t] = sum;
    }
}

fn add_block(sums: ptr<function, Sums>, batch: Batch, group: u32, block: u32, lane: u32) {
    let rows = load_four(group, params.blocks, block, lane);
    let b0 = rows[0];
    let b1 = rows[1];
    let b2 = rows[2];
    let b3 = rows[3];
    let at = block * 8u;
    // Written out, so that each `i` is a constant and decoding needs no dynamic index.
    add_columns(sums, decode4(b0, 0u), decode4(b1, 0u), decode4(b2, 0u), decode4(b3, 0u), batch, at);
    add_columns(sums, decode4(b0, 1u), decode4(b1, 1u), decode4(b2, 1u), decode4(b3, 1u), batch, at + 1u);
    add_columns(sums, decode4(b0, 2u), decode4(b1, 2u), decode4(b2, 2u), decode4(b3, 2u), batch, at + 2u);
    add_columns(sums, decode4(b0, 3u), decode4(b1, 3u), decode4(b2, 3u), decode4(b3, 3u), batch, at + 3u);
    add_columns(sums, decode4(b0, 4u), decode4(b1, 4u), decode4(b2, 4u), decode4(b3, 4u), batch, at + 4u);
    add_columns(sums, decode4(b0, 5u), decode4(b1, 5u), decode4(b2, 5u), decode4(b3, 5u), batch, at + 5u);
    add_columns(sums, decode4(b0, 6u), decode4(b1, 6u), decode4(b2, 6u), decode4(b3, 6u), batch, at + 6u);
    add_columns(sums, decode4(b0, 7u), decode4(b1, 7u), decode4(b2, 7u), decode4(b3, 7u), batch, at + 7u);
}
