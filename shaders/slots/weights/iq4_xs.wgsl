//! slot code_plane scale_plane
//! use lib/own_rows lib/scale_word
// IQ4_XS: 32 nibbles as in q4_0 that name one of sixteen levels; a signed scale of six bits, in units of a super-block's
// f16. w = scale * level.

struct Block { nibbles: vec4<u32>, scale: f32 }

fn block_of(nibbles: vec4<u32>, outer: u32, inner: u32, block: u32) -> Block {
    let byte = bitcast<i32>(inner << (24u - 8u * (block & 3u))) >> 24u;
    return Block(nibbles, unpack2x16float(outer).x * f32(byte));
}

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 32u + row;
    // Three words a super-block: the outer scale, then one byte for each block.
    let scales_at = (group * (blocks / 8u) + block / 8u) * 96u;
    let outer = scale_word(scales_at, row);
    let inner = scale_word(scales_at + 32u + (block & 4u) * 8u, row);
    return block_of(code_vector(at), outer, inner, block);
}

fn load_four(group: u32, blocks: u32, block: u32, lane: u32) -> array<Block, 4> {
    let at = (group * blocks + block) * 32u + first_own_row(lane);
    let low = code_pair(at);
    let high = code_pair(at + 16u);
    let scales_at = (group * (blocks / 8u) + block / 8u) * 96u;
    let outer = scale_words(scales_at, lane);
    let inner = scale_words(scales_at + 32u + (block & 4u) * 8u, lane);
    return array(
        block_of(low[0], outer.x, inner.x, block),
        block_of(low[1], outer.y, inner.y, block),
        block_of(high[0], outer.z, inner.z, block),
        block_of(high[1], outer.w, inner.w, block),
    );
}

// As in iq4_nl.
fn levels(code: vec4<u32>) -> vec4<f32> {
    let x = vec4<f32>(code);
    var y = fma(vec4(0.00158604), x, vec4(0.0310864));
    y = fma(y, x, vec4(-1.37193));
    y = fma(y, x, vec4(24.1738));
    return round(fma(y, x, vec4(-126.567)));
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let shift = select(0u, 4u, i >= 4u);
    return levels(unpack4xU8((block.nibbles[i & 3u] >> shift) & 0x0f0f0f0fu)) * block.scale;
}
