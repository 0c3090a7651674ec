//! slot activation batch
// activation(gate) * up. The matrix holds, in each group of 32 rows, 16 gate rows and then the 16 up rows that belong to them.

@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const LEAVES: bool = false;

fn finish(member: u32, token: u32, row: u32, sums: vec4<f32>) {
    let column = (row / 32u) * 16u + (row & 31u);
    let at = token * params.out_stride + params.out_offset + column;
    if column < params.row_count {
        out[at] = activate(sums.x) * sums.z;
    }
    if column + 1u < params.row_count {
        out[at + 1u] = activate(sums.y) * sums.w;
    }
}

fn leave(batch: Batch, first_group: u32, lane: u32) {}
