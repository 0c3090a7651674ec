//! kernel quantize
//! use lib/step_inputs lib/int12
// Rows of activations as int12, for products whose input was not left that way; a lane a block.

struct QuantizeParams {
    blocks: u32,          // of 32 columns in a row
    rows_per_token: u32,  // more than one where each token has several experts
    reserved0: u32,
    reserved1: u32,
}

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> result: array<vec2<u32>>;
@group(0) @binding(3) var<uniform> params: QuantizeParams;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let row = workgroup.y;
    let column = workgroup.x * WG_X + local.x;
    if row >= inputs.header.row_count * params.rows_per_token || column >= params.blocks {
        return;
    }
    let at = (row * params.blocks + column) * 8u;
    var columns: Columns;
    for (var i = 0u; i < 8u; i++) {
        columns[i] = x[at + i];
    }
    var pairs = quantized(&columns);
    for (var i = 0u; i < 8u; i++) {
        result[at + i] = pairs[i];
    }
}
