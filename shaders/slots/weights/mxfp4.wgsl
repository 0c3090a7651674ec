//! slot code_plane scale_plane
//! use lib/own_rows lib/scale_word
// MXFP4: 32 nibbles as in q4_0, each a float of one sign bit, two exponent bits and one of mantissa, and one exponent.
// w = 2^(exponent - 128) * twice the float.

struct Block { nibbles: vec4<u32>, half_scale: f32 }

fn block_of(nibbles: vec4<u32>, word: u32, block: u32) -> Block {
    let exponent = (word >> (8u * (block & 3u))) & 0xffu;
    // Exponents 0 and 1 give zero.
    return Block(nibbles, bitcast<f32>((max(exponent, 1u) - 1u) << 23u));
}

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 32u + row;
    let word = scale_word((group * ((blocks + 3u) / 4u) + block / 4u) * 32u, row);
    return block_of(code_vector(at), word, block);
}

fn load_four(group: u32, blocks: u32, block: u32, lane: u32) -> array<Block, 4> {
    let at = (group * blocks + block) * 32u + first_own_row(lane);
    let low = code_pair(at);
    let high = code_pair(at + 16u);
    let words = scale_words((group * ((blocks + 3u) / 4u) + block / 4u) * 32u, lane);
    return array(
        block_of(low[0], words.x, block),
        block_of(low[1], words.y, block),
        block_of(high[0], words.z, block),
        block_of(high[1], words.w, block),
    );
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let shift = select(0u, 4u, i >= 4u);
    let code = unpack4xU8((block.nibbles[i & 3u] >> shift) & 0x0f0f0f0fu);
    // Nibbles of a constant: 0 1 2 3 4 6 8 12.
    let doubled = vec4<f32>((vec4(0xc8643210u) >> ((code & vec4(7u)) << vec4(2u))) & vec4(15u));
    return select(doubled, -doubled, code >= vec4(8u)) * block.half_scale;
}
