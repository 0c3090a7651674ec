//! kernel resolve
//! use lib/step_inputs lib/seq_state
// Says for each row what it computes in this step: (token, slot, position, KV index). Decode rows take token and position
// from their slot. Padding and finished rows get NONE and are passed over by everything that writes. Where the slot keeps
// its history, the token joins it.

@group(0) @binding(1) var<storage, read> slots: array<SeqState>;
@group(0) @binding(2) var<storage, read> tables: array<u32>;
@group(0) @binding(3) var<storage, read_write> rows: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> side: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let index = id.x;
    if index >= arrayLength(&rows) {
        return;
    }
    var row = vec4(0u, NONE, NONE, NONE);
    if index < inputs.header.row_count {
        let entry = inputs.entries[inputs.header.rows_at + index];
        let slot = entry.y;
        var token = entry.x;
        var position = entry.z;
        var live = true;
        if index < inputs.header.decode_count {
            token = slots[slot].token;
            position = slots[slot].position;
            live = slots[slot].done == 0u;
        }
        if live {
            let block = tables[slot * inputs.header.table_stride + (position >> 4u)];
            row = vec4(token, slot, position, block * 16u + (position & 15u));
            if (slots[slot].flags & KEEPS_HISTORY) != 0u {
                side[slot * inputs.header.side_stride + position] = token;
            }
        }
    }
    rows[index] = row;
}
