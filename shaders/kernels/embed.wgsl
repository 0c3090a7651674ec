//! kernel embed
//! slot weights
// x[row] = scale * embedding of the row's token, one workgroup a row; one dispatch for each shard of the vocabulary. With
// POSITIONS the table is indexed by the row's position instead, and its vectors are added to what is there.

struct EmbedParams {
    blocks: u32,          // blocks of 32 columns
    first_entry: u32,     // of the shard
    entry_count: u32,     // in the shard
    scale: f32,
}

@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> params: EmbedParams;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let row = workgroup.x;
    // Entries before the shard wrap around, and so does the position of padding.
    let entry = select(rows[row].x, rows[row].z, POSITIONS) - params.first_entry;
    if entry >= params.entry_count {
        return;
    }
    for (var block = local.x; block < params.blocks; block += WG_X) {
        let weights = load_block(entry >> 5u, params.blocks, block, entry & 31u);
        for (var i = 0u; i < 8u; i++) {
            let at = (row * params.blocks + block) * 8u + i;
            let vector = decode4(weights, i) * params.scale;
            if POSITIONS {
                x[at] += vector;
            } else {
                x[at] = vector;
            }
        }
    }
}
