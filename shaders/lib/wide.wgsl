//! 64-bit words as pairs of 32-bit ones.

fn halves(words: vec2<u64>) -> vec4<u32> {
    return vec4(u32(words.x), u32(words.x >> 32u), u32(words.y), u32(words.y >> 32u));
}
