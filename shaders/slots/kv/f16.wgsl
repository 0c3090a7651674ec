//! Keys and values as f16, two to a word.

alias KvPair = u32;
alias KvOctet = vec4<u32>;

struct Octet { low: vec4<f32>, high: vec4<f32> }

fn pack_pair(values: vec2<f32>) -> KvPair {
    // Clamped: a value beyond f16 would turn into an infinity and spread.
    return pack2x16float(clamp(values, vec2(-65504.0), vec2(65504.0)));
}

fn unpack_octet(stored: KvOctet) -> Octet {
    return Octet(
        vec4(unpack2x16float(stored.x), unpack2x16float(stored.y)),
        vec4(unpack2x16float(stored.z), unpack2x16float(stored.w)),
    );
}
