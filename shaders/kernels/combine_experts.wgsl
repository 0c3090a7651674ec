//! kernel combine_experts
//! use lib/step_inputs
// out[row] = sum over the row's experts, in their order, of weight * x[pair]; with ADD on top of what is there.

struct CombineExpertsParams {
    width: u32,           // in vectors of four
    reserved0: u32,
    reserved1: u32,
    reserved2: u32,
}

@group(0) @binding(1) var<storage, read> chosen: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> params: CombineExpertsParams;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let row = workgroup.y;
    let column = workgroup.x * WG_X + local.x;
    if row >= inputs.header.row_count || column >= params.width {
        return;
    }
    var sum = vec4(0.0);
    for (var i = 0u; i < CHOSEN; i++) {
        let pair = row * CHOSEN + i;
        sum = fma(vec4(bitcast<f32>(chosen[pair].y)), x[pair * params.width + column], sum);
    }
    let at = row * params.width + column;
    if ADD {
        out[at] += sum;
    } else {
        out[at] = sum;
    }
}
