//! use lib/octet lib/wide
// One load of 64-bit words, which software adapters take one by one whatever their size.

@group(0) @binding(3) var<storage, read> qkv: array<vec4<u64>>;

fn query_octet(at: u32) -> Octet {
    let words = qkv[at / 2u];
    return Octet(bitcast<vec4<f32>>(halves(words.xy)), bitcast<vec4<f32>>(halves(words.zw)));
}
