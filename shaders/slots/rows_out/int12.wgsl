//! use lib/int12
// As int12.

@group(0) @binding(9) var<storage, read_write> result: array<vec2<u32>>;

const BLOCKS: bool = true;

fn write_block(block: u32, columns: ptr<function, Columns>) {
    var pairs = quantized(columns);
    for (var i = 0u; i < 8u; i++) {
        result[block * 8u + i] = pairs[i];
    }
}

fn write_vector(at: u32, vector: vec4<f32>) {}
