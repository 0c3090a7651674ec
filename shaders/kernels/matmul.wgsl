//! kernel matmul
//! slot weights epilogue batch
// out[token][row] = epilogue(sum over columns of weights[row][column] * x[token][column]), for any number of tokens.
//
// Eight lanes own a group of 32 output rows, four rows each, and hold a tile of TILE tokens in registers. Columns are cut
// into params.segments segments; each is summed from its first column to its last by fma, and segments are added in order.
// So an output has the same bits whatever TILE and SEGMENT_LANES are and however many tokens there are.

struct MatmulParams {
    blocks: u32,          // blocks of 32 columns
    segments: u32,        // pieces of the sum
    group_count: u32,     // groups of 32 rows in this shard
    row_count: u32,       // output columns that exist in this shard
    out_offset: u32,      // where this shard's output begins in a row
    out_stride: u32,
    x_stride: u32,        // in vectors of four
    first_sample: u32,    // for wanted rows: the first of this pass, and the most of a pass
    sample_limit: u32,
    first_expert: u32,    // for experts: those whose matrices the shard holds, each of group_count groups,
    expert_count: u32,
    pairs_per_input: u32, // and how many pairs in a row read the same row of x
    cap: f32,             // of a soft limit
}

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> params: MatmulParams;

alias Sums = array<vec4<f32>, TILE>;

var<workgroup> partial: array<vec4<f32>, WG_X * SEGMENT_LANES * select(1u, TILE, SEGMENT_LANES > 1u)>;

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

fn add_segment(sums: ptr<function, Sums>, segment: u32, group: u32, lane: u32, batch: Batch) {
    let length = (params.blocks + params.segments - 1u) / params.segments;
    let begin = segment * length;
    let end = min(begin + length, params.blocks);
    let first = first_group(batch);
    for (var block = begin; block < end; block++) {
        let b0 = load_block(first + group, params.blocks, block, lane);
        let b1 = load_block(first + group, params.blocks, block, lane + 8u);
        let b2 = load_block(first + group, params.blocks, block, lane + 16u);
        let b3 = load_block(first + group, params.blocks, block, lane + 24u);
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
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let batch = batch_at(workgroup.y);
    if batch.count == 0u {
        return;
    }
    let group = workgroup.x * (WG_X / 8u) + local.x / 8u;
    let lane = local.x & 7u;
    let exists = group < params.group_count;
    var total: Sums;
    for (var segment = local.y; segment < params.segments; segment += SEGMENT_LANES) {
        var sums: Sums;
        if exists {
            add_segment(&sums, segment, group, lane, batch);
        }
        for (var t = 0u; t < TILE; t++) {
            if SEGMENT_LANES == 1u {
                total[t] += sums[t];
            } else {
                partial[(t * SEGMENT_LANES + segment) * WG_X + local.x] = sums[t];
            }
        }
    }
    if SEGMENT_LANES > 1u {
        workgroupBarrier();
        for (var t = 0u; t < TILE; t++) {
            for (var segment = 0u; segment < params.segments; segment++) {
                total[t] += partial[(t * SEGMENT_LANES + segment) * WG_X + local.x];
            }
        }
    }
    if exists && local.y == 0u {
        for (var t = 0u; t < TILE; t++) {
            if t < batch.count {
                finish(output_row(batch, t), group * 32u + lane, total[t]);
            }
        }
    }
}
