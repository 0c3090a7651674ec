// What becomes of the finished sums of one token: `sums` are output rows `row`, `row + 8`, `row + 16`, `row + 24` of the
// matrix, counted within its shard. `params` and `out` are the matmul kernel's.

fn finish(token: u32, row: u32, sums: vec4<f32>) {}
