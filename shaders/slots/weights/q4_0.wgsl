//! Q4_0: 32 nibbles and one f16 scale. w = scale * (code - 8). Byte j holds columns j (low) and j + 16 (high).

@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<u32>;

struct Block { nibbles: vec4<u32>, scale: f32 }

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let pair = unpack2x16float(scales[(group * ((blocks + 1u) / 2u) + block / 2u) * 32u + row]);
    return Block(codes[(group * blocks + block) * 32u + row], select(pair.x, pair.y, (block & 1u) == 1u));
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let shift = select(0u, 4u, i >= 4u);
    let code = unpack4xU8((block.nibbles[i & 3u] >> shift) & 0x0f0f0f0fu);
    return (vec4<f32>(code) - 8.0) * block.scale;
}
