//! slot batch
//! use lib/int12
// Adds the sums to the residual stream, and leaves its new rows for the product behind the next root-mean-square norm: times the
// norm's weight, as int12. What is missing is one factor for the whole row, which needs all of its blocks; each block carries the
// sum of its squares, and the product that reads the row multiplies its own sums with the factor.

@group(0) @binding(2) var<storage, read_write> out: array<vec2<f32>>;
@group(0) @binding(8) var<storage, read> next_weight: array<vec4<f32>>;
@group(0) @binding(9) var<storage, read_write> result: array<vec2<u32>>;

const LEAVES: bool = true;
// Outputs of a workgroup.
const SPAN: u32 = WG_X * 4u;

var<workgroup> kept: array<vec2<f32>, TILE * SPAN / 2u>;

fn finish(member: u32, token: u32, row: u32, sums: vec4<f32>) {
    if row >= params.row_count {
        return;
    }
    // Whole blocks of 32 rows, so pairs of rows are whole too.
    let at = (token * params.out_stride + params.out_offset + row) / 2u;
    let low = out[at] + sums.xy;
    let high = out[at + 8u] + sums.zw;
    out[at] = low;
    out[at + 8u] = high;
    let to = (member * SPAN + row % SPAN) / 2u;
    kept[to] = low;
    kept[to + 8u] = high;
}

fn leave(batch: Batch, first_group: u32, lane: u32) {
    for (var task = lane; task < TILE * (SPAN / 32u); task += WG_X * WG_Y) {
        let member = task / (SPAN / 32u);
        let within = task % (SPAN / 32u) * 32u;
        let column = first_group * 32u + within;
        if member < batch.count && column < params.row_count {
            let first = (params.out_offset + column) / 4u;
            var squares = vec4(0.0);
            var columns: Columns;
            for (var i = 0u; i < 8u; i++) {
                let at = (member * SPAN + within) / 2u + 2u * i;
                let values = vec4(kept[at], kept[at + 1u]);
                squares = fma(values, values, squares);
                columns[i] = values * next_weight[first + i];
            }
            var pairs = quantized(&columns);
            let sum = bitcast<u32>((squares.x + squares.y) + (squares.z + squares.w));
            pairs[4].y |= sum << 16u;
            pairs[5].y |= sum & 0xffff0000u;
            let to = output_row(batch, member) * (params.out_stride / 4u) + first;
            for (var i = 0u; i < 8u; i++) {
                result[to + i] = pairs[i];
            }
        }
    }
}
