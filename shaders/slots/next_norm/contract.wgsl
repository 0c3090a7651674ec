// The norm in front of the next sublayer, if it can be made while the row is at hand. `x` is element vector `i` of the row,
// `at` its place among all rows.

const NEXT: bool = false;
fn next_normed(at: u32, i: u32, x: vec4<f32>, scale: f32) {}
