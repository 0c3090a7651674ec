//! kernel matmul
//! slot arithmetic epilogue batch
//! use lib/own_rows
// out[token][row] = epilogue(sum over columns of weights[row][column] * x[token][column]), for any number of tokens.
//
// Eight lanes own a group of 32 output rows, four rows each (see lib/own_rows), and hold a tile of TILE tokens in registers. Columns are cut
// into params.segments segments; each is summed from its first block to its last, and segments are added in order. So an
// output has the same bits whatever TILE and SEGMENT_LANES are and however many tokens there are.
//
// With NORMED the rows lack the factor of their root-mean-square norm (see slots/epilogue/add_left), and sums get it in the end.

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
    norm_eps: f32,        // of the norm whose factor rows still lack
    turns_at: u32,        // where the table of rotations begins, in vectors of the list of rows
}

@group(0) @binding(3) var<uniform> params: MatmulParams;

var<workgroup> partial: array<vec4<f32>, WG_X * SEGMENT_LANES * select(1u, TILE, SEGMENT_LANES > 1u)>;

fn add_segment(sums: ptr<function, Sums>, batch: Batch, segment: u32, group: u32, lane: u32) {
    let length = (params.blocks + params.segments - 1u) / params.segments;
    let begin = segment * length;
    let end = min(begin + length, params.blocks);
    for (var block = begin; block < end; block++) {
        add_block(sums, batch, group, block, lane);
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
    // Lanes without a group read the last one: they take part in what the arithmetic does together.
    let source = first_group(batch) + min(group, params.group_count - 1u);
    var total: Sums;
    // One lane along segments takes them all.
    let along = select(0u, local.y, SEGMENT_LANES > 1u);
    for (var segment = along; segment < params.segments; segment += SEGMENT_LANES) {
        var sums: Sums;
        add_segment(&sums, batch, segment, source, lane);
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
    if NORMED {
        // Only the first lanes along segments finish.
        if SEGMENT_LANES > 1u && local.y == 0u {
            add_squares(batch);
        }
        for (var t = 0u; t < TILE; t++) {
            total[t] *= inverseSqrt(squares[t] / f32(params.blocks * 32u) + params.norm_eps);
        }
    }
    if group < params.group_count && local.y == 0u {
        for (var t = 0u; t < TILE; t++) {
            if t < batch.count {
                finish(t, output_row(batch, t), group * 32u + first_own_row(lane), total[t]);
            }
        }
    }
    if LEAVES {
        workgroupBarrier();
        leave(batch, workgroup.x * (WG_X / 8u), local.y * WG_X + local.x);
    }
}
