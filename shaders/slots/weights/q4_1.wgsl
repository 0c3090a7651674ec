//! Q4_1: 32 nibbles, an f16 scale and an f16 minimum. w = scale * code + minimum. Nibbles as in q4_0.

@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<u32>;

struct Block { nibbles: vec4<u32>, scale: f32, minimum: f32 }

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 32u + row;
    let pair = unpack2x16float(scales[at]);
    return Block(codes[at], pair.x, pair.y);
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let shift = select(0u, 4u, i >= 4u);
    let code = unpack4xU8((block.nibbles[i & 3u] >> shift) & 0x0f0f0f0fu);
    return fma(vec4<f32>(code), vec4(block.scale), vec4(block.minimum));
}
