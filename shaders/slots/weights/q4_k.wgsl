//! slot code_plane scale_plane
//! use lib/own_rows lib/scale_word
// Q4_K: 32 nibbles as in q4_0; a scale and a minimum of six bits, in units of a super-block's two f16.
// w = scale * code - minimum.

struct Block { nibbles: vec4<u32>, scale: f32, minimum: f32 }

fn block_of(nibbles: vec4<u32>, outer: u32, inner: u32, block: u32) -> Block {
    let bytes = unpack4xU8(inner);
    let pair = unpack2x16float(outer) * vec2<f32>(select(bytes.xy, bytes.zw, (block & 1u) == 1u));
    return Block(nibbles, pair.x, pair.y);
}

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 32u + row;
    // Five words a super-block: the outer scales, then two bytes for each block.
    let scales_at = (group * (blocks / 8u) + block / 8u) * 160u;
    let outer = scale_word(scales_at, row);
    let inner = scale_word(scales_at + 32u + (block & 6u) * 16u, row);
    return block_of(code_vector(at), outer, inner, block);
}

fn load_four(group: u32, blocks: u32, block: u32, lane: u32) -> array<Block, 4> {
    let at = (group * blocks + block) * 32u + first_own_row(lane);
    let low = code_pair(at);
    let high = code_pair(at + 16u);
    let scales_at = (group * (blocks / 8u) + block / 8u) * 160u;
    let outer = scale_words(scales_at, lane);
    let inner = scale_words(scales_at + 32u + (block & 6u) * 16u, lane);
    return array(
        block_of(low[0], outer.x, inner.x, block),
        block_of(low[1], outer.y, inner.y, block),
        block_of(high[0], outer.z, inner.z, block),
        block_of(high[1], outer.w, inner.w, block),
    );
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let shift = select(0u, 4u, i >= 4u);
    let code = unpack4xU8((block.nibbles[i & 3u] >> shift) & 0x0f0f0f0fu);
    return fma(vec4<f32>(code), vec4(block.scale), vec4(-block.minimum));
}
