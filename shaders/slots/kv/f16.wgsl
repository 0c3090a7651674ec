//! use lib/octet
// Keys and values as f16, two to a word.

@group(0) @binding(4) var<storage, read> keys: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> values: array<vec4<u32>>;

fn unpacked(words: vec4<u32>) -> Octet {
    return Octet(
        vec4(unpack2x16float(words.x), unpack2x16float(words.y)),
        vec4(unpack2x16float(words.z), unpack2x16float(words.w)),
    );
}

fn key_octet(entry: u32, octet: u32) -> Octet {
    return unpacked(keys[entry * (HEAD_DIM / 8u) + octet]);
}

fn key_octets(entry: u32, pair: u32) -> array<Octet, 2> {
    return array(key_octet(entry, 2u * pair), key_octet(entry, 2u * pair + 1u));
}

fn value_octet(entry: u32, octet: u32) -> Octet {
    return unpacked(values[entry * (HEAD_DIM / 8u) + octet]);
}
