//! kernel update
//! use lib/step_inputs
// Applies the host's changes to slots and block tables: pairs of (address, word), an address with its top bit set being an
// index into the block tables. One workgroup, once a submission.

@group(0) @binding(1) var<storage, read_write> slots: array<u32>;
@group(0) @binding(2) var<storage, read_write> tables: array<u32>;

fn apply(address: u32, value: u32) {
    if address == NONE {
        return;
    }
    if (address & 0x80000000u) != 0u {
        tables[address & 0x7fffffffu] = value;
    } else {
        slots[address] = value;
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(local_invocation_id) local: vec3<u32>) {
    for (var i = local.x; i < inputs.header.update_count; i += WG_X) {
        let pairs = inputs.entries[inputs.header.updates_at + i];
        apply(pairs.x, pairs.y);
        apply(pairs.z, pairs.w);
    }
}
