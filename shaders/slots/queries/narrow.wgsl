//! use lib/octet
// Two vectors.

@group(0) @binding(3) var<storage, read> qkv: array<vec4<f32>>;

fn query_octet(at: u32) -> Octet {
    return Octet(qkv[at], qkv[at + 1u]);
}
