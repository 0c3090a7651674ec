//! Q5_0: 32 nibbles, 32 fifth bits and one f16 scale. w = scale * (code - 16). Nibbles as in q4_0.

@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<u32>;
@group(0) @binding(12) var<storage, read> bits: array<u32>;

struct Block { nibbles: vec4<u32>, fifth: u32, scale: f32 }

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 32u + row;
    let pair = unpack2x16float(scales[(group * ((blocks + 1u) / 2u) + block / 2u) * 32u + row]);
    return Block(codes[at], bits[at], select(pair.x, pair.y, (block & 1u) == 1u));
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let shift = select(0u, 4u, i >= 4u);
    // The multiplication spreads four bits over four bytes.
    let fifth = ((((block.fifth >> (4u * i)) & 15u) * 0x00204081u) & 0x01010101u) << 4u;
    let code = unpack4xU8(((block.nibbles[i & 3u] >> shift) & 0x0f0f0f0fu) | fifth);
    return (vec4<f32>(code) - 16.0) * block.scale;
}
