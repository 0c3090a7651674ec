//! use lib/columns
// As they are.

@group(0) @binding(9) var<storage, read_write> result: array<vec4<f32>>;

const BLOCKS: bool = false;

fn write_block(block: u32, columns: ptr<function, Columns>) {
    for (var i = 0u; i < 8u; i++) {
        result[block * 8u + i] = (*columns)[i];
    }
}

fn write_vector(at: u32, vector: vec4<f32>) {
    result[at] = vector;
}
