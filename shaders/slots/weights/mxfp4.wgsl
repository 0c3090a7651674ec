//! MXFP4: 32 nibbles as in q4_0, each a float of one sign bit, two exponent bits and one of mantissa, and one exponent.
//! w = 2^(exponent - 128) * twice the float.

@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<u32>;

struct Block { nibbles: vec4<u32>, half_scale: f32 }

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let word = scales[(group * ((blocks + 3u) / 4u) + block / 4u) * 32u + row];
    let exponent = (word >> (8u * (block & 3u))) & 0xffu;
    // Exponents 0 and 1 give zero.
    let half_scale = bitcast<f32>((max(exponent, 1u) - 1u) << 23u);
    return Block(codes[(group * blocks + block) * 32u + row], half_scale);
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let shift = select(0u, 4u, i >= 4u);
    let code = unpack4xU8((block.nibbles[i & 3u] >> shift) & 0x0f0f0f0fu);
    // Nibbles of a constant: 0 1 2 3 4 6 8 12.
    let doubled = vec4<f32>((vec4(0xc8643210u) >> ((code & vec4(7u)) << vec4(2u))) & vec4(15u));
    return select(doubled, -doubled, code >= vec4(8u)) * block.half_scale;
}
