//! slot rows_out
// The next sublayer reads the row's root-mean-square norm.

@group(0) @binding(5) var<storage, read> next_weight: array<vec4<f32>>;

const NEXT: bool = true;

fn next_normed(at: u32, block: u32, columns: ptr<function, Columns>, scale: f32) {
    for (var n = 0u; n < 8u; n++) {
        (*columns)[n] = (*columns)[n] * scale * next_weight[block * 8u + n];
    }
    write_block(at, columns);
}
