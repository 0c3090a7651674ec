//! use lib/each_row
// bf16, two to a word: four vectors a block. Widening is a shift, hence exact.

@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;

struct Block { columns: array<vec4<u32>, 4> }

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 128u + row;
    return Block(array(codes[at], codes[at + 32u], codes[at + 64u], codes[at + 96u]));
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    var columns = block.columns;
    let eight = columns[i / 2u];
    let words = select(eight.xy, eight.zw, (i & 1u) == 1u);
    return bitcast<vec4<f32>>(vec4(words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u));
}
