//! use lib/each_row
// Plain f32: eight vectors a block.

@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;

struct Block { columns: array<vec4<u32>, 8> }

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    let at = (group * blocks + block) * 256u + row;
    return Block(array(
        codes[at], codes[at + 32u], codes[at + 64u], codes[at + 96u],
        codes[at + 128u], codes[at + 160u], codes[at + 192u], codes[at + 224u],
    ));
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    var columns = block.columns;
    return bitcast<vec4<f32>>(columns[i]);
}
