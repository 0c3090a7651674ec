//! slot code_plane scale_plane
//! use lib/own_rows lib/scale_word
// IQ4_NL: 32 nibbles as in q4_0 that name one of sixteen levels, and one f16 scale. w = scale * level.

struct Block { nibbles: vec4<u32>, scale: f32 }

fn block_of(nibbles: vec4<u32>, word: u32, block: u32) -> Block {
    let pair = unpack2x16float(word);
    return Block(nibbles, select(pair.x, pair.y, (block & 1u) == 1u));
}

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 32u + row;
    let word = scale_word((group * ((blocks + 1u) / 2u) + block / 2u) * 32u, row);
    return block_of(code_vector(at), word, block);
}

fn load_four(group: u32, blocks: u32, block: u32, lane: u32) -> array<Block, 4> {
    let at = (group * blocks + block) * 32u + first_own_row(lane);
    let low = code_pair(at);
    let high = code_pair(at + 16u);
    let words = scale_words((group * ((blocks + 1u) / 2u) + block / 2u) * 32u, lane);
    return array(
        block_of(low[0], words.x, block),
        block_of(low[1], words.y, block),
        block_of(high[0], words.z, block),
        block_of(high[1], words.w, block),
    );
}

// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113: the roundings of a polynomial, which stays further from the
// halves than any rounding error reaches. A table would take twice the operations.
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
