//! 32-bit words.

@group(0) @binding(11) var<storage, read> scales: array<vec4<u32>>;

fn scale_words(at: u32, lane: u32) -> vec4<u32> {
    return scales[at / 4u + lane];
}
