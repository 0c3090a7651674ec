//! kernel norm
//! slot reduce
//! use lib/step_inputs
// RMSNorm, one workgroup a row: out = x * weight / sqrt(mean(x^2) + eps). With GATHER, row i of the output is the i-th row
// whose logits are wanted.

struct NormParams {
    width: u32,           // in vectors of four
    eps: f32,
    first_sample: u32,
    reserved: u32,
}

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> params: NormParams;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let lane = local.x;
    var source = workgroup.x;
    if GATHER {
        let sample = params.first_sample + workgroup.x;
        if sample >= inputs.header.sample_count {
            return;
        }
        source = inputs.entries[inputs.header.samples_at + sample].x;
    } else if source >= inputs.header.row_count {
        return;
    }
    let source_at = source * params.width;
    var squares = vec4(0.0);
    for (var i = lane; i < params.width; i += WG_X) {
        squares = fma(x[source_at + i], x[source_at + i], squares);
    }
    let sum = reduce_add((squares.x + squares.y) + (squares.z + squares.w), lane);
    let scale = inverseSqrt(sum / f32(params.width * 4u) + params.eps);
    let to = workgroup.x * params.width;
    for (var i = lane; i < params.width; i += WG_X) {
        out[to + i] = x[source_at + i] * scale * weight[i];
    }
}
