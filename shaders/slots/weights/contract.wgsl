// A weight format. `load_block` reads 32 consecutive columns of row `row` of a group of 32 rows, in a matrix of `blocks`
// blocks of 32 columns; the layout of the planes stands in src/quant/mod.rs. `decode4` widens columns 4 i .. 4 i + 3 of them
// to exactly the f32 that the file means, and is cheap when `i` is a constant. `load_four` reads the rows that a lane owns in a
// product: 2 l, 2 l + 1, 2 l + 16 and 2 l + 17 for lane l, neighbours in pairs. All may be called by any lane at any time.

struct Block { codes: vec4<u32> }
fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block { return Block(vec4(0u)); }
fn decode4(block: Block, i: u32) -> vec4<f32> { return vec4(0.0); }
fn load_four(group: u32, blocks: u32, block: u32, lane: u32) -> array<Block, 4> { return array<Block, 4>(); }
