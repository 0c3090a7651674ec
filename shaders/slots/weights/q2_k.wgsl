//! slot scale_plane
//! use lib/own_rows lib/scale_word
// Q2_K: 32 codes of two bits; for each 16 columns a scale and a minimum of four bits, in units of a super-block's two f16.
// w = scale * code - minimum. Vector i lies in word i % 2, at bit 2 (i / 2) of each byte.

@group(0) @binding(10) var<storage, read> codes: array<vec2<u32>>;

struct Block { pairs: vec2<u32>, scale: vec2<f32>, minimum: vec2<f32> }

fn block_of(pairs: vec2<u32>, outer: u32, inner: u32, block: u32) -> Block {
    let bytes = unpack4xU8(inner);
    let pair = select(bytes.xy, bytes.zw, (block & 1u) == 1u);
    let outer_pair = unpack2x16float(outer);
    return Block(pairs, outer_pair.x * vec2<f32>(pair & vec2(15u)), outer_pair.y * vec2<f32>(pair >> vec2(4u)));
}

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 32u + row;
    // Five words a super-block: the outer scales, then two bytes for each block.
    let scales_at = (group * (blocks / 8u) + block / 8u) * 160u;
    let outer = scale_word(scales_at, row);
    let inner = scale_word(scales_at + 32u + (block & 6u) * 16u, row);
    return block_of(codes[at], outer, inner, block);
}

fn load_four(group: u32, blocks: u32, block: u32, lane: u32) -> array<Block, 4> {
    let at = (group * blocks + block) * 32u + first_own_row(lane);
    let scales_at = (group * (blocks / 8u) + block / 8u) * 160u;
    let outer = scale_words(scales_at, lane);
    let inner = scale_words(scales_at + 32u + (block & 6u) * 16u, lane);
    return array(
        block_of(codes[at], outer.x, inner.x, block),
        block_of(codes[at + 1u], outer.y, inner.y, block),
        block_of(codes[at + 16u], outer.z, inner.z, block),
        block_of(codes[at + 17u], outer.w, inner.w, block),
    );
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let word = select(block.pairs.x, block.pairs.y, (i & 1u) == 1u);
    let code = unpack4xU8((word >> (2u * (i / 2u))) & 0x03030303u);
    let scale = select(block.scale.x, block.scale.y, i >= 4u);
    let minimum = select(block.minimum.x, block.minimum.y, i >= 4u);
    return fma(vec4<f32>(code), vec4(scale), vec4(-minimum));
}
