//! slot code_plane scale_plane
//! use lib/own_rows lib/scale_word
// Q8_0: 32 signed bytes and one f16 scale. w = scale * code.

struct Block { low: vec4<u32>, high: vec4<u32>, scale: f32 }

fn block_of(low: vec4<u32>, high: vec4<u32>, word: u32, block: u32) -> Block {
    let pair = unpack2x16float(word);
    return Block(low, high, select(pair.x, pair.y, (block & 1u) == 1u));
}

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 64u + row;
    let word = scale_word((group * ((blocks + 1u) / 2u) + block / 2u) * 32u, row);
    return block_of(code_vector(at), code_vector(at + 32u), word, block);
}

fn load_four(group: u32, blocks: u32, block: u32, lane: u32) -> array<Block, 4> {
    let at = (group * blocks + block) * 64u + first_own_row(lane);
    let low = code_pair(at);
    let later_low = code_pair(at + 16u);
    let high = code_pair(at + 32u);
    let later_high = code_pair(at + 48u);
    let words = scale_words((group * ((blocks + 1u) / 2u) + block / 2u) * 32u, lane);
    return array(
        block_of(low[0], high[0], words.x, block),
        block_of(low[1], high[1], words.y, block),
        block_of(later_low[0], later_high[0], words.z, block),
        block_of(later_low[1], later_high[1], words.w, block),
    );
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let half = select(block.low, block.high, i >= 4u);
    return vec4<f32>(unpack4xI8(half[i & 3u])) * block.scale;
}
