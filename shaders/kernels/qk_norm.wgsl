//! kernel qk_norm
//! slot reduce
//! use lib/step_inputs
// RMSNorm of all query heads of a token as one row, and of all its key heads as another, in place: one workgroup each.

struct QkNormParams {
    query_width: u32,     // all widths in vectors of four
    key_width: u32,
    stride: u32,          // of a row of queries, keys and values
    eps: f32,
}

@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;  // of queries, then of keys
@group(0) @binding(2) var<storage, read_write> qkv: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> params: QkNormParams;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let lane = local.x;
    if workgroup.x >= inputs.header.row_count {
        return;
    }
    let keys = workgroup.y == 1u;
    let width = select(params.query_width, params.key_width, keys);
    let offset = select(0u, params.query_width, keys);
    let begin = workgroup.x * params.stride + offset;
    var squares = vec4(0.0);
    for (var i = lane; i < width; i += WG_X) {
        squares = fma(qkv[begin + i], qkv[begin + i], squares);
    }
    let sum = reduce_add((squares.x + squares.y) + (squares.z + squares.w), lane);
    let scale = inverseSqrt(sum / f32(width * 4u) + params.eps);
    for (var i = lane; i < width; i += WG_X) {
        qkv[begin + i] = qkv[begin + i] * scale * weight[offset + i];
    }
}
