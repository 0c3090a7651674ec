// What becomes of the finished sums. `finish` takes those of member `member` of the batch, which is row `token` of the output: rows
// `row`, `row + 1`, `row + 16` and `row + 17` of the matrix, counted within its shard (see lib/own_rows). With LEAVES all lanes
// meet at a barrier after that and call `leave`, which writes rows for the next product from what the workgroup has kept;
// `first_group` is that of the workgroup. `params` are the matmul kernel's; the slot binds where it writes.

struct Batch { count: u32 }
const LEAVES: bool = false;
fn finish(member: u32, token: u32, row: u32, sums: vec4<f32>) {}
fn leave(batch: Batch, first_group: u32, lane: u32) {}
