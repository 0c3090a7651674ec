//! use lib/wide
// 64-bit words: see code_plane/wide.

@group(0) @binding(11) var<storage, read> scales: array<vec2<u64>>;

fn scale_words(at: u32, lane: u32) -> vec4<u32> {
    return halves(scales[at / 4u + lane]);
}
