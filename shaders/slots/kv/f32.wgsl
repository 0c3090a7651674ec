//! use lib/octet
// Keys and values as f32.

@group(0) @binding(4) var<storage, read> keys: array<mat2x4<f32>>;
@group(0) @binding(5) var<storage, read> values: array<mat2x4<f32>>;

fn key_octet(entry: u32, octet: u32) -> Octet {
    let stored = keys[entry * (HEAD_DIM / 8u) + octet];
    return Octet(stored[0], stored[1]);
}

fn key_octets(entry: u32, pair: u32) -> array<Octet, 2> {
    return array(key_octet(entry, 2u * pair), key_octet(entry, 2u * pair + 1u));
}

fn value_octet(entry: u32, octet: u32) -> Octet {
    let stored = values[entry * (HEAD_DIM / 8u) + octet];
    return Octet(stored[0], stored[1]);
}
