// Which rows of activations a workgroup multiplies, TILE at most, with which matrix of the planes. `index` counts
// workgroups; a batch of no rows is nothing to do. Rows past `count` may be asked for and read some row that exists or padding
// behind it. `params` is the matmul kernel's.

struct Batch { count: u32 }
fn batch_at(index: u32) -> Batch { return Batch(0u); }
fn input_at(batch: Batch, member: u32) -> u32 { return 0u; }
fn output_row(batch: Batch, member: u32) -> u32 { return 0u; }
fn first_group(batch: Batch) -> u32 { return 0u; }
