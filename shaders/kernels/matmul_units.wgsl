//! kernel matmul_units
//! slot weights epilogue batch matrix
//! use lib/own_rows
// The product of matmul.wgsl on the adapter's matrix units: f16 factors, f32 sums. Optional; see src/kernels/matmul_units.rs.
//
// A subgroup of 32 lanes owns a group of 32 output rows, a lane each while weights are widened; a workgroup multiplies GROUPS
// groups with a tile of TILE tokens. Columns are summed block by block, in order, whatever the number of tokens, and rows
// beyond the batch are computed like the others and dropped.

struct MatmulParams {
    blocks: u32,
    segments: u32,
    group_count: u32,
    row_count: u32,
    out_offset: u32,
    out_stride: u32,
    x_stride: u32,
    first_sample: u32,
    sample_limit: u32,
    first_expert: u32,
    expert_count: u32,
    pairs_per_input: u32,
    cap: f32,
    norm_eps: f32,
    turns_at: u32,
}

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> params: MatmulParams;

const COLUMNS = 32u;             // of a block
const STRIPS = TILE / MATRIX;    // of tokens
const ROWS = 32u / MATRIX;       // of matrix tiles in a group
const LARGEST = 65504.0;

var<workgroup> tokens: array<f16, TILE * COLUMNS>;            // [token][column]
var<workgroup> weights: array<f16, GROUPS * 32u * COLUMNS>;   // [group][row][column]
var<workgroup> strip: array<f32, GROUPS * MATRIX * 32u>;      // [group][token of a strip][row]

var<workgroup> member_count: u32;

// Values that f16 cannot hold become the largest that it can; those that are not finite stay so.
fn narrow(value: vec4<f32>) -> vec4<f16> {
    let finite = (bitcast<vec4<u32>>(value) & vec4(0x7f800000u)) != vec4(0x7f800000u);
    return vec4<f16>(select(value, clamp(value, vec4(-LARGEST), vec4(LARGEST)), finite));
}

fn stage_tokens(batch: Batch, block: u32, lane: u32) {
    for (var i = lane; i < TILE * 8u; i += WG_X) {
        // Members that a batch lacks are its last one again.
        let member = min(i / 8u, batch.count - 1u);
        let values = narrow(x[input_at(batch, member) + block * 8u + (i & 7u)]);
        let at = i * 4u;
        tokens[at] = values.x;
        tokens[at + 1u] = values.y;
        tokens[at + 2u] = values.z;
        tokens[at + 3u] = values.w;
    }
}

fn stage_columns(at: u32, value: vec4<f32>) {
    let values = narrow(value);
    weights[at] = values.x;
    weights[at + 1u] = values.y;
    weights[at + 2u] = values.z;
    weights[at + 3u] = values.w;
}

fn stage_weights(batch: Batch, group: u32, block: u32, part: u32, row: u32) {
    let found = load_block(first_group(batch) + min(group, params.group_count - 1u), params.blocks, block, row);
    let at = (part * 32u + row) * COLUMNS;
    // Written out, so that decoding needs no dynamic index.
    stage_columns(at, decode4(found, 0u));
    stage_columns(at + 4u, decode4(found, 1u));
    stage_columns(at + 8u, decode4(found, 2u));
    stage_columns(at + 12u, decode4(found, 3u));
    stage_columns(at + 16u, decode4(found, 4u));
    stage_columns(at + 20u, decode4(found, 5u));
    stage_columns(at + 24u, decode4(found, 6u));
    stage_columns(at + 28u, decode4(found, 7u));
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let batch = batch_at(workgroup.y);
    // Matrix units want what is the same for all lanes to be known as such.
    if local.x == 0u {
        member_count = batch.count;
    }
    if workgroupUniformLoad(&member_count) == 0u {
        return;
    }
    let part = local.x / 32u;
    let lane = local.x & 31u;
    let group = workgroup.x * GROUPS + part;
    var sums: array<Sum, STRIPS * ROWS>;
    for (var block = 0u; block < params.blocks; block++) {
        stage_tokens(batch, block, local.x);
        stage_weights(batch, group, block, part, lane);
        workgroupBarrier();
        for (var column = 0u; column < COLUMNS; column += MATRIX) {
            for (var row = 0u; row < ROWS; row++) {
                let right = coopLoad<Right>(&weights[(part * 32u + row * MATRIX) * COLUMNS + column], COLUMNS);
                for (var s = 0u; s < STRIPS; s++) {
                    let left = coopLoadT<Left>(&tokens[s * MATRIX * COLUMNS + column], COLUMNS);
                    sums[s * ROWS + row] = coopMultiplyAdd(left, right, sums[s * ROWS + row]);
                }
            }
        }
        workgroupBarrier();
    }
    for (var s = 0u; s < STRIPS; s++) {
        for (var row = 0u; row < ROWS; row++) {
            coopStoreT(sums[s * ROWS + row], &strip[part * MATRIX * 32u + row * MATRIX], 32u);
        }
        workgroupBarrier();
        for (var t = lane / 8u; t < MATRIX; t += 4u) {
            let member = s * MATRIX + t;
            if group < params.group_count && member < batch.count {
                let row = first_own_row(lane & 7u);
                let at = (part * MATRIX + t) * 32u + row;
                let found = vec4(strip[at], strip[at + 1u], strip[at + 16u], strip[at + 17u]);
                finish(member, output_row(batch, member), group * 32u + row, found);
            }
        }
        workgroupBarrier();
    }
}
