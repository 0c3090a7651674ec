//! Q8_0: 32 signed bytes and one f16 scale. w = scale * code.

@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<u32>;

struct Block { low: vec4<u32>, high: vec4<u32>, scale: f32 }

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 64u + row;
    let pair = unpack2x16float(scales[(group * ((blocks + 1u) / 2u) + block / 2u) * 32u + row]);
    return Block(codes[at], codes[at + 32u], select(pair.x, pair.y, (block & 1u) == 1u));
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let half = select(block.low, block.high, i >= 4u);
    return vec4<f32>(unpack4xI8(half[i & 3u])) * block.scale;
}
