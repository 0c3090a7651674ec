//! Q2_K: 32 codes of two bits; for each 16 columns a scale and a minimum of four bits, in units of a super-block's two f16.
//! w = scale * code - minimum. Vector i lies in word i % 2, at bit 2 (i / 2) of each byte.

@group(0) @binding(10) var<storage, read> codes: array<vec2<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<u32>;

struct Block { pairs: vec2<u32>, scale: vec2<f32>, minimum: vec2<f32> }

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    // Five words a super-block: the outer scales, then two bytes for each block.
    let at = (group * (blocks / 8u) + block / 8u) * 160u + row;
    let outer = unpack2x16float(scales[at]);
    let bytes = unpack4xU8(scales[at + 32u + (block & 6u) * 16u]);
    let inner = select(bytes.xy, bytes.zw, (block & 1u) == 1u);
    return Block(
        codes[(group * blocks + block) * 32u + row],
        outer.x * vec2<f32>(inner & vec2(15u)),
        outer.y * vec2<f32>(inner >> vec2(4u)),
    );
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let word = select(block.pairs.x, block.pairs.y, (i & 1u) == 1u);
    let code = unpack4xU8((word >> (2u * (i / 2u))) & 0x03030303u);
    let scale = select(block.scale.x, block.scale.y, i >= 4u);
    let minimum = select(block.minimum.x, block.minimum.y, i >= 4u);
    return fma(vec4<f32>(code), vec4(scale), vec4(-minimum));
}
