// How one block of 32 columns is multiplied. `add_block` adds to the sum of each member of the batch, and of each of the four
// rows that a lane owns, the products of block `block` with the weights of group `group`. Every lane of the workgroup calls it
// with the same block. `params` is the matmul kernel's; the slot binds the activations, as `x`.
//
// With NORMED `squares` are the sums of the squares of the batch's rows, block after block: `add_block` adds those of its block if
// one lane takes all segments, else `add_squares` adds all of them.

struct Batch { count: u32 }
var<private> squares: array<f32, TILE>;
alias Sums = array<vec4<f32>, TILE>;
fn add_squares(batch: Batch) {}
fn add_block(sums: ptr<function, Sums>, batch: Batch, group: u32, block: u32, lane: u32) {}
