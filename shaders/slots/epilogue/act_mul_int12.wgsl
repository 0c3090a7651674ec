//! slot activation batch
//! use lib/int12
// activation(gate) * up, from a matrix as for act_mul, left as int12: two groups of rows make a block of 32 columns, and a
// workgroup has whole blocks.

@group(0) @binding(9) var<storage, read_write> result: array<vec2<u32>>;

const LEAVES: bool = true;
// Outputs of a workgroup.
const SPAN: u32 = WG_X * 2u;

var<workgroup> kept: array<vec2<f32>, TILE * SPAN / 2u>;

fn finish(member: u32, token: u32, row: u32, sums: vec4<f32>) {
    let at = member * SPAN + ((row / 32u) * 16u + (row & 31u)) % SPAN;
    kept[at / 2u] = vec2(activate(sums.x) * sums.z, activate(sums.y) * sums.w);
}

fn leave(batch: Batch, first_group: u32, lane: u32) {
    for (var task = lane; task < TILE * (SPAN / 32u); task += WG_X * WG_Y) {
        let member = task / (SPAN / 32u);
        let within = task % (SPAN / 32u) * 32u;
        let column = first_group * 16u + within;
        if member < batch.count && column < params.row_count {
            var columns: Columns;
            for (var i = 0u; i < 8u; i++) {
                let at = (member * SPAN + within) / 2u + 2u * i;
                columns[i] = vec4(kept[at], kept[at + 1u]);
            }
            var pairs = quantized(&columns);
            let to = (output_row(batch, member) * params.out_stride + params.out_offset + column) / 4u;
            for (var i = 0u; i < 8u; i++) {
                result[to + i] = pairs[i];
            }
        }
    }
}
