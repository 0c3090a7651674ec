//! Layer norm: both.

@group(0) @binding(5) var<storage, read> bias: array<vec4<f32>>;

const CENTERED: bool = true;

fn norm_bias(i: u32) -> vec4<f32> {
    return bias[i];
}
