//! kernel embed
//! slot weights
// x[row] = embedding of the row's token, one workgroup a row; one dispatch for each shard of the vocabulary.

struct EmbedParams {
    blocks: u32,          // blocks of 32 columns
    first_token: u32,     // of the shard
    token_count: u32,     // in the shard
    reserved: u32,
}

@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> params: EmbedParams;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let row = workgroup.x;
    let token = rows[row].x - params.first_token;
    if token >= params.token_count {
        return;
    }
    for (var block = local.x; block < params.blocks; block += WG_X) {
        let weights = load_block(token >> 5u, params.blocks, block, token & 31u);
        for (var i = 0u; i < 8u; i++) {
            x[(row * params.blocks + block) * 8u + i] = decode4(weights, i);
        }
    }
}
