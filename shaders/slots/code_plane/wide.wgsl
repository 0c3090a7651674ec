//! use lib/wide
// Two vectors at a time, in 64-bit words: software adapters load lane by lane and word by word, whatever the size of a word.

@group(0) @binding(10) var<storage, read> codes: array<vec4<u64>>;

fn code_vector(at: u32) -> vec4<u32> {
    let words = codes[at / 2u];
    return halves(select(words.xy, words.zw, (at & 1u) == 1u));
}

fn code_pair(at: u32) -> array<vec4<u32>, 2> {
    let words = codes[at / 2u];
    return array(halves(words.xy), halves(words.zw));
}
