//! slot weights codes batch
//! use lib/int12
// Activations as whole numbers (see lib/int12), which are multiplied with the codes of the weights exactly; each block adds one
// term to the sum by fma. Four products at a time, for adapters that have an instruction for that: those of the upper eight bits
// of the activations, and those of the lower four.

@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;

var<private> squares: array<f32, TILE>;

fn add_squares(batch: Batch) {
    for (var block = 0u; block < params.blocks; block++) {
        for (var t = 0u; t < TILE; t++) {
            let pairs = x[(input_at(batch, t) + block * 8u) / 2u + 2u];
            squares[t] += int12_number(pairs.y, pairs.w);
        }
    }
}

alias Sums = array<vec4<f32>, TILE>;

// Products of columns 4 i .. 4 i + 3 in four rows.
fn dots(b0: Block, b1: Block, b2: Block, b3: Block, i: u32, pair: vec2<u32>) -> vec4<i32> {
    let lower = (pair.y & 0x0f0fu) | ((pair.y & 0xf0f0u) << 12u);
    let c0 = codes4(b0, i);
    let c1 = codes4(b1, i);
    let c2 = codes4(b2, i);
    let c3 = codes4(b3, i);
    let above =
        vec4(dot4I8Packed(c0, pair.x), dot4I8Packed(c1, pair.x), dot4I8Packed(c2, pair.x), dot4I8Packed(c3, pair.x));
    let below = vec4(dot4I8Packed(c0, lower), dot4I8Packed(c1, lower), dot4I8Packed(c2, lower), dot4I8Packed(c3, lower));
    return 16 * above + below;
}

fn add_block(sums: ptr<function, Sums>, batch: Batch, group: u32, block: u32, lane: u32) {
    let rows = load_four(group, params.blocks, block, lane);
    let b0 = rows[0];
    let b1 = rows[1];
    let b2 = rows[2];
    let b3 = rows[3];
    for (var t = 0u; t < TILE; t++) {
        // Two pairs a vector.
        let at = (input_at(batch, t) + block * 8u) / 2u;
        let v0 = x[at];
        let v1 = x[at + 1u];
        let v2 = x[at + 2u];
        let v3 = x[at + 3u];
        var low = dots(b0, b1, b2, b3, 0u, v0.xy) + dots(b0, b1, b2, b3, 1u, v0.zw);
        low += dots(b0, b1, b2, b3, 2u, v1.xy) + dots(b0, b1, b2, b3, 3u, v1.zw);
        var high = dots(b0, b1, b2, b3, 4u, v2.xy) + dots(b0, b1, b2, b3, 5u, v2.zw);
        high += dots(b0, b1, b2, b3, 6u, v3.xy) + dots(b0, b1, b2, b3, 7u, v3.zw);
        if NORMED && SEGMENT_LANES == 1u {
            squares[t] += int12_number(v2.y, v2.w);
        }
        let halves = int12_sums(v1.y, v1.w);
        let l = vec4<f32>(low);
        let h = vec4<f32>(high);
        let term = vec4(
            block_term(b0, vec2(l.x, h.x), halves),
            block_term(b1, vec2(l.y, h.y), halves),
            block_term(b2, vec2(l.z, h.z), halves),
            block_term(b3, vec2(l.w, h.w), halves),
        );
        (*sums)[t] = fma(term, vec4(int12_number(v0.y, v0.w)), (*sums)[t]);
    }
}
