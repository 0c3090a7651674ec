//! slot scale_plane
//! use lib/own_rows lib/scale_word
// Q3_K: 32 codes of two bits as in q2_k, a third bit for each, and for each 16 columns a signed scale in units of a
// super-block's f16. w = scale * (code - 4). The third bits of vector i lie at bit i of each byte.

@group(0) @binding(10) var<storage, read> codes: array<vec2<u32>>;
@group(0) @binding(12) var<storage, read> bits: array<u32>;

struct Block { pairs: vec2<u32>, third: u32, scale: vec2<f32> }

fn block_of(pairs: vec2<u32>, third: u32, outer: u32, inner: u32, block: u32) -> Block {
    let bytes = unpack4xI8(inner);
    let pair = select(bytes.xy, bytes.zw, (block & 1u) == 1u);
    return Block(pairs, third, unpack2x16float(outer).x * vec2<f32>(pair));
}

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 32u + row;
    // Five words a super-block: the outer scale, then two bytes for each block.
    let scales_at = (group * (blocks / 8u) + block / 8u) * 160u;
    let outer = scale_word(scales_at, row);
    let inner = scale_word(scales_at + 32u + (block & 6u) * 16u, row);
    return block_of(codes[at], bits[at], outer, inner, block);
}

fn load_four(group: u32, blocks: u32, block: u32, lane: u32) -> array<Block, 4> {
    let at = (group * blocks + block) * 32u + first_own_row(lane);
    let scales_at = (group * (blocks / 8u) + block / 8u) * 160u;
    let outer = scale_words(scales_at, lane);
    let inner = scale_words(scales_at + 32u + (block & 6u) * 16u, lane);
    return array(
        block_of(codes[at], bits[at], outer.x, inner.x, block),
        block_of(codes[at + 1u], bits[at + 1u], outer.y, inner.y, block),
        block_of(codes[at + 16u], bits[at + 16u], outer.z, inner.z, block),
        block_of(codes[at + 17u], bits[at + 17u], outer.w, inner.w, block),
    );
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let word = select(block.pairs.x, block.pairs.y, (i & 1u) == 1u);
    let third = ((block.third >> i) & 0x01010101u) << 2u;
    let code = unpack4xU8(((word >> (2u * (i / 2u))) & 0x03030303u) | third);
    return (vec4<f32>(code) - 4.0) * select(block.scale.x, block.scale.y, i >= 4u);
}
