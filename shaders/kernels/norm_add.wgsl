//! kernel norm_add
//! slot reduce next_norm
//! use lib/step_inputs
// hidden += rms_norm(x), one workgroup a row: the end of a sublayer whose output is normed before it joins the residual stream.
// The norm in front of the next sublayer follows at once where there is one.

struct NormAddParams {
    width: u32,           // in vectors of four
    eps: f32,
    next_eps: f32,
    reserved: u32,
}

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> hidden: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> params: NormAddParams;

// What a root-mean-square norm multiplies by, from each lane's squares.
fn norm_scale(squares: vec4<f32>, eps: f32, lane: u32) -> f32 {
    let sum = reduce_add((squares.x + squares.y) + (squares.z + squares.w), lane);
    return inverseSqrt(sum / f32(params.width * 4u) + eps);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let lane = local.x;
    if workgroup.x >= inputs.header.row_count {
        return;
    }
    let begin = workgroup.x * params.width;
    var squares = vec4(0.0);
    for (var i = lane; i < params.width; i += WG_X) {
        squares = fma(x[begin + i], x[begin + i], squares);
    }
    let scale = norm_scale(squares, params.eps, lane);
    var next_squares = vec4(0.0);
    for (var block = lane; block < params.width / 8u; block += WG_X) {
        for (var i = block * 8u; i < block * 8u + 8u; i++) {
            let sum = hidden[begin + i] + x[begin + i] * scale * weight[i];
            hidden[begin + i] = sum;
            next_squares = fma(sum, sum, next_squares);
        }
    }
    if NEXT {
        let next_scale = norm_scale(next_squares, params.next_eps, lane);
        // Each lane reads back what it wrote itself.
        for (var block = lane; block < params.width / 8u; block += WG_X) {
            var columns: Columns;
            for (var n = 0u; n < 8u; n++) {
                columns[n] = hidden[begin + block * 8u + n];
            }
            next_normed(workgroup.x * (params.width / 8u) + block, block, &columns, next_scale);
        }
    }
}
