//! use lib/columns
// The next sublayer reads the residual stream as it is, or is the output head, which gathers rows first.

const NEXT: bool = false;

fn next_normed(at: u32, block: u32, columns: ptr<function, Columns>, scale: f32) {}
