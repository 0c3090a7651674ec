//! The next sublayer reads the residual stream as it is, or is the output head, which gathers rows first.

const NEXT: bool = false;

fn next_normed(at: u32, i: u32, x: vec4<f32>, scale: f32) {}
