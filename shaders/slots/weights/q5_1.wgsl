//! slot code_plane scale_plane
//! use lib/own_rows lib/scale_word
// Q5_1: 32 nibbles, 32 fifth bits, an f16 scale and an f16 minimum. w = scale * code + minimum. Nibbles as in q4_0.

@group(0) @binding(12) var<storage, read> bits: array<u32>;

struct Block { nibbles: vec4<u32>, fifth: u32, scale: f32, minimum: f32 }

fn block_of(nibbles: vec4<u32>, fifth: u32, word: u32, block: u32) -> Block {
    let pair = unpack2x16float(word);
    return Block(nibbles, fifth, pair.x, pair.y);
}

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 32u + row;
    let word = scale_word((group * blocks + block) * 32u, row);
    return block_of(code_vector(at), bits[at], word, block);
}

fn load_four(group: u32, blocks: u32, block: u32, lane: u32) -> array<Block, 4> {
    let at = (group * blocks + block) * 32u + first_own_row(lane);
    let low = code_pair(at);
    let high = code_pair(at + 16u);
    let words = scale_words((group * blocks + block) * 32u, lane);
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
    return fma(vec4<f32>(code), vec4(block.scale), vec4(block.minimum));
}
