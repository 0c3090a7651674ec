//! The next sublayer reads the row's root-mean-square norm.

@group(0) @binding(5) var<storage, read> next_weight: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> normed: array<vec4<f32>>;

const NEXT: bool = true;

fn next_normed(at: u32, i: u32, x: vec4<f32>, scale: f32) {
    normed[at] = x * scale * next_weight[i];
}
