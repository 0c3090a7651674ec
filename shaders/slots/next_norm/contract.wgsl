// The norm in front of the next sublayer, if it can be made while the row is at hand. `columns` are those of block `block` of the
// row, `at` counts blocks through all rows.

const NEXT: bool = false;
fn next_normed(at: u32, block: u32, columns: ptr<function, array<vec4<f32>, 8>>, scale: f32) {}
