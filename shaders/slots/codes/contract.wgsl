// A weight format as whole numbers, for products with int12 activations; goes with the slot `weights` of the same format, whose
// Block it reads. `codes4` gives the codes of columns 4 i .. 4 i + 3 as four signed bytes. `block_term` is what a block adds to a
// product, in units of the scale of the activations: from the sums over columns 0 to 15 and over 16 to 31 of codes times codes
// of activations, and of the latter alone, all of them whole numbers. Without HALVES one scale covers the block, and the first
// of the products may be zero with the second that of all columns. Without SIGNED no code is negative.

struct Block { codes: vec4<u32> }
const SIGNED: bool = false;
const HALVES: bool = false;
fn codes4(block: Block, i: u32) -> u32 { return 0u; }
fn block_term(block: Block, products: vec2<f32>, sums: vec2<f32>) -> f32 { return 0.0; }
