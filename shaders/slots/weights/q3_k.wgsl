//! Q3_K: 32 codes of two bits as in q2_k, a third bit for each, and for each 16 columns a signed scale in units of a
//! super-block's f16. w = scale * (code - 4). The third bits of vector i lie at bit i of each byte.

@group(0) @binding(10) var<storage, read> codes: array<vec2<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<u32>;
@group(0) @binding(12) var<storage, read> bits: array<u32>;

struct Block { pairs: vec2<u32>, third: u32, scale: vec2<f32> }

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    // Five words a super-block: the outer scale, then two bytes for each block.
    let at = (group * (blocks / 8u) + block / 8u) * 160u + row;
    let outer = unpack2x16float(scales[at]).x;
    let bytes = unpack4xI8(scales[at + 32u + (block & 6u) * 16u]);
    let inner = select(bytes.xy, bytes.zw, (block & 1u) == 1u);
    let own = (group * blocks + block) * 32u + row;
    return Block(codes[own], bits[own], outer * vec2<f32>(inner));
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let word = select(block.pairs.x, block.pairs.y, (i & 1u) == 1u);
    let third = ((block.third >> i) & 0x01010101u) << 2u;
    let code = unpack4xU8(((word >> (2u * (i / 2u))) & 0x03030303u) | third);
    return (vec4<f32>(code) - 4.0) * select(block.scale.x, block.scale.y, i >= 4u);
}
