//! slot code_plane scale_plane
//! use lib/own_rows lib/scale_word
// Q6_K: 32 nibbles as in q4_0 and two more bits for each; for each 16 columns a signed byte as scale, in units of a
// super-block's f16. w = scale * (code - 32). The upper bits of vector i lie in word i % 2, at bit 2 (i / 2) of each byte.

@group(0) @binding(12) var<storage, read> bits: array<vec2<u32>>;

struct Block { nibbles: vec4<u32>, upper: vec2<u32>, scale: vec2<f32> }

fn block_of(nibbles: vec4<u32>, upper: vec2<u32>, outer: u32, inner: u32, block: u32) -> Block {
    let bytes = unpack4xI8(inner);
    let pair = select(bytes.xy, bytes.zw, (block & 1u) == 1u);
    return Block(nibbles, upper, unpack2x16float(outer).x * vec2<f32>(pair));
}

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 32u + row;
    // Five words a super-block: the outer scale, then two bytes for each block.
    let scales_at = (group * (blocks / 8u) + block / 8u) * 160u;
    let outer = scale_word(scales_at, row);
    let inner = scale_word(scales_at + 32u + (block & 6u) * 16u, row);
    return block_of(code_vector(at), bits[at], outer, inner, block);
}

fn load_four(group: u32, blocks: u32, block: u32, lane: u32) -> array<Block, 4> {
    let at = (group * blocks + block) * 32u + first_own_row(lane);
    let low = code_pair(at);
    let high = code_pair(at + 16u);
    let scales_at = (group * (blocks / 8u) + block / 8u) * 160u;
    let outer = scale_words(scales_at, lane);
    let inner = scale_words(scales_at + 32u + (block & 6u) * 16u, lane);
    return array(
        block_of(low[0], bits[at], outer.x, inner.x, block),
        block_of(low[1], bits[at + 1u], outer.y, inner.y, block),
        block_of(high[0], bits[at + 16u], outer.z, inner.z, block),
        block_of(high[1], bits[at + 17u], outer.w, inner.w, block),
    );
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let shift = select(0u, 4u, i >= 4u);
    let word = select(block.upper.x, block.upper.y, (i & 1u) == 1u);
    let upper = ((word >> (2u * (i / 2u))) & 0x03030303u) << 4u;
    let code = unpack4xU8(((block.nibbles[i & 3u] >> shift) & 0x0f0f0f0fu) | upper);
    return (vec4<f32>(code) - 32.0) * select(block.scale.x, block.scale.y, i >= 4u);
}
