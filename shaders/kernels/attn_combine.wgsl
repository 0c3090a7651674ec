//! kernel attn_combine
//! slot rows_out
//! use lib/step_inputs lib/chunk
// Merges the partial results of a decode row's chunks, in chunk order: one workgroup a row and head. Partials are counted from
// the first chunk that the row's window reaches.

struct CombineParams {
    chunk_stride: u32,    // chunks that the partial buffer has room for, per row and head
    reserved0: u32,
    reserved1: u32,
    reserved2: u32,
}

@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> partials: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> params: CombineParams;

const QUADS: u32 = HEAD_DIM / 4u;
// Rows are left in blocks only where these are whole.
const HEAD_BLOCKS: u32 = (HEAD_DIM + 31u) / 32u;

// Vector `i` of a head's result.
fn merged(head: u32, chunks: u32, i: u32) -> vec4<f32> {
    var sum = vec4(0.0);
    var running = vec2(MASKED, 0.0);
    for (var chunk = 0u; chunk < chunks; chunk++) {
        let source_at = (head * params.chunk_stride + chunk) * (QUADS + 1u);
        // A workgroup that had this chunk alone has already merged it into nothing, which changes no bit.
        let there = partials[source_at + QUADS].xy;
        let merging = merge_factors(running.x, there.x);
        sum = merge(sum, partials[source_at + i], merging);
        running = vec2(max(running.x, there.x), merge_sum(running.y, there.y, merging));
    }
    return sum / running.y;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let row = rows[workgroup.x];
    if workgroup.x >= inputs.header.decode_count || row.z == NONE {
        return;
    }
    let head = workgroup.x * HEADS + workgroup.y;
    var chunks = (row.z + KV_CHUNK) / KV_CHUNK;
    if WINDOW != NONE {
        chunks -= (row.z - min(row.z, WINDOW - 1u)) / KV_CHUNK;
    }
    if BLOCKS {
        for (var block = local.x; block < HEAD_BLOCKS; block += WG_X) {
            var columns: Columns;
            for (var n = 0u; n < 8u; n++) {
                columns[n] = merged(head, chunks, block * 8u + n);
            }
            write_block(head * HEAD_BLOCKS + block, &columns);
        }
        return;
    }
    for (var i = local.x; i < QUADS; i += WG_X) {
        write_vector(head * QUADS + i, merged(head, chunks, i));
    }
}
