// A weight format. `at` counts (group, block, row in the group): (group * blocks + block) * 32 + row.
// `load_block` reads 32 consecutive columns of one row; `decode4` widens columns 4 i .. 4 i + 3 of them, and is cheap
// when `i` is a constant. Both may be called by any lane at any time.

struct Block { codes: vec4<u32> }
fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block { return Block(vec4(0u)); }
fn decode4(block: Block, i: u32) -> vec4<f32> { return vec4(0.0); }
