//! Q5_K: 32 nibbles as in q4_0 and a fifth bit for each; a scale and a minimum of six bits, in units of a super-block's two
//! f16. w = scale * code - minimum. The fifth bits of vector i lie at bit i of each byte.

@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<u32>;
@group(0) @binding(12) var<storage, read> bits: array<u32>;

struct Block { nibbles: vec4<u32>, fifth: u32, scale: f32, minimum: f32 }

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    // Five words a super-block: the outer scales, then two bytes for each block.
    let at = (group * (blocks / 8u) + block / 8u) * 160u + row;
    let outer = unpack2x16float(scales[at]);
    let bytes = unpack4xU8(scales[at + 32u + (block & 6u) * 16u]);
    let inner = outer * vec2<f32>(select(bytes.xy, bytes.zw, (block & 1u) == 1u));
    let own = (group * blocks + block) * 32u + row;
    return Block(codes[own], bits[own], inner.x, inner.y);
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let shift = select(0u, 4u, i >= 4u);
    let fifth = ((block.fifth >> i) & 0x01010101u) << 4u;
    let code = unpack4xU8(((block.nibbles[i & 3u] >> shift) & 0x0f0f0f0fu) | fifth);
    return fma(vec4<f32>(code), vec4(block.scale), vec4(-block.minimum));
}
