//! kernel act_mul
//! use lib/step_inputs
// out = silu(gate) * up, for gate and up projections of different formats, which cannot share one product.

struct ActMulParams {
    width: u32,           // in vectors of four
    reserved0: u32,
    reserved1: u32,
    reserved2: u32,
}

@group(0) @binding(1) var<storage, read> gate: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> up: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> params: ActMulParams;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let row = workgroup.y;
    let column = workgroup.x * WG_X + local.x;
    if row >= inputs.header.row_count || column >= params.width {
        return;
    }
    let at = row * params.width + column;
    let g = gate[at];
    // Beyond the clamp e^-x leaves f32, and the result is 0 (or x) to the last bit anyway.
    out[at] = g / (1.0 + exp(clamp(-g, vec4(-80.0), vec4(80.0)))) * up[at];
}
