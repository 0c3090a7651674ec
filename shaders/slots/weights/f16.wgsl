//! use lib/each_row
// f16, two to a word: four vectors a block. Unpacking works without the f16 feature, and beats it on lavapipe.

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
    return vec4(unpack2x16float(words.x), unpack2x16float(words.y));
}
