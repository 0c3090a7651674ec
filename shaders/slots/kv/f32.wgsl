//! Keys and values as f32.

alias KvPair = vec2<f32>;
alias KvOctet = mat2x4<f32>;

struct Octet { low: vec4<f32>, high: vec4<f32> }

fn pack_pair(values: vec2<f32>) -> KvPair {
    return values;
}

fn unpack_octet(stored: KvOctet) -> Octet {
    return Octet(stored[0], stored[1]);
}
