//! kernel act_mul
//! slot activation
//! use lib/step_inputs
// out = activation(gate) * up, for gate and up projections of different formats, which cannot share one product.

struct ActMulParams {
    width: u32,           // in vectors of four
    rows_per_token: u32,  // more than one where each token has several experts
    reserved0: u32,
    reserved1: u32,
}

@group(0) @binding(1) var<storage, read> gate: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> up: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> params: ActMulParams;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let row = workgroup.y;
    let column = workgroup.x * WG_X + local.x;
    if row >= inputs.header.row_count * params.rows_per_token || column >= params.width {
        return;
    }
    let at = row * params.width + column;
    let g = gate[at];
    out[at] = vec4(activate(g.x), activate(g.y), activate(g.z), activate(g.w)) * up[at];
}
