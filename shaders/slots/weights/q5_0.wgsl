//! slot code_plane scale_plane
//! use lib/own_rows lib/scale_word
// Q5_0: 32 nibbles, 32 fifth bits and one f16 scale. w = scale * (code - 16). Nibbles as in q4_0.

@group(0) @binding(12) var<storage, read> bits: array<u32>;

struct Block { nibbles: vec4<u32>, fifth: u32, scale: f32 }

fn block_of(nibbles: vec4<u32>, fifth: u32, word: u32, block: u32) -> Block {
    let pair = unpack2x16float(word);
    return Block(nibbles, fifth, select(pair.x, pair.y, (block & 1u) == 1u));
}

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 32u + row;
    let word = scale_word((group * ((blocks + 1u) / 2u) + block / 2u) * 32u, row);
    return block_of(code_vector(at), bits[at], word, block);
}

fn load_four(group: u32, blocks: u32, block: u32, lane: u32) -> array<Block, 4> {
    let at = (group * blocks + block) * 32u + first_own_row(lane);
    let low = code_pair(at);
    let high = code_pair(at + 16u);
    let words = scale_words((group * ((blocks + 1u) / 2u) + block / 2u) * 32u, lane);
    return array(
        block_of(low[0], bits[at], words.x, block),
        block_of(low[1], bits[at + 1u], words.y, block),
        block_of(high[0], bits[at + 16u], words.z, block),
        block_of(high[1], bits[at + 17u], words.w, block),
    );
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let shift = select(0u, 4u, i >= 4u);
    // The multiplication spreads four bits over four bytes.
    let fifth = ((((block.fifth >> (4u * i)) & 15u) * 0x00204081u) & 0x01010101u) << 4u;
    let code = unpack4xU8(((block.nibbles[i & 3u] >> shift) & 0x0f0f0f0fu) | fifth);
    return (vec4<f32>(code) - 16.0) * block.scale;
}
