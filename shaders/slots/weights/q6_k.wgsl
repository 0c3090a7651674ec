//! Q6_K: 32 nibbles as in q4_0 and two more bits for each; for each 16 columns a signed byte as scale, in units of a
//! super-block's f16. w = scale * (code - 32). The upper bits of vector i lie in word i % 2, at bit 2 (i / 2) of each byte.

@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<u32>;
@group(0) @binding(12) var<storage, read> bits: array<vec2<u32>>;

struct Block { nibbles: vec4<u32>, upper: vec2<u32>, scale: vec2<f32> }

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
    let shift = select(0u, 4u, i >= 4u);
    let word = select(block.upper.x, block.upper.y, (i & 1u) == 1u);
    let upper = ((word >> (2u * (i / 2u))) & 0x03030303u) << 4u;
    let code = unpack4xU8(((block.nibbles[i & 3u] >> shift) & 0x0f0f0f0fu) | upper);
    return (vec4<f32>(code) - 32.0) * select(block.scale.x, block.scale.y, i >= 4u);
}
