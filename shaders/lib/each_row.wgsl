//! use lib/own_rows
// For formats whose rows are read one by one.

fn load_four(group: u32, blocks: u32, block: u32, lane: u32) -> array<Block, 4> {
    let row = first_own_row(lane);
    return array(
        load_block(group, blocks, block, row),
        load_block(group, blocks, block, row + 1u),
        load_block(group, blocks, block, row + 16u),
        load_block(group, blocks, block, row + 17u),
    );
}
