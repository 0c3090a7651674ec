//! slot batch
//! use lib/own_rows
// Adds the sums to what is there: the residual stream.

@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const LEAVES: bool = false;

fn finish(member: u32, token: u32, row: u32, sums: vec4<f32>) {
    let at = token * params.out_stride + params.out_offset + row;
    for (var i = 0u; i < 4u; i++) {
        let own = to_own_row(i);
        if row + own < params.row_count {
            out[at + own] += sums[i];
        }
    }
}

fn leave(batch: Batch, first_group: u32, lane: u32) {}
