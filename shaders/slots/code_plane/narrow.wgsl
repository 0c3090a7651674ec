//! A vector at a time.

@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;

fn code_vector(at: u32) -> vec4<u32> {
    return codes[at];
}

fn code_pair(at: u32) -> array<vec4<u32>, 2> {
    return array(codes[at], codes[at + 1u]);
}
