//! use lib/octet lib/wide
// Keys and values as f16, four to a word: one load of sixteen elements, for software adapters (see queries/wide).

@group(0) @binding(4) var<storage, read> keys: array<vec4<u64>>;
@group(0) @binding(5) var<storage, read> values: array<vec2<u64>>;

fn unpacked(words: vec4<u32>) -> Octet {
    return Octet(
        vec4(unpack2x16float(words.x), unpack2x16float(words.y)),
        vec4(unpack2x16float(words.z), unpack2x16float(words.w)),
    );
}

fn key_octet(entry: u32, octet: u32) -> Octet {
    let at = entry * (HEAD_DIM / 8u) + octet;
    let words = keys[at / 2u];
    return unpacked(halves(select(words.xy, words.zw, (at & 1u) == 1u)));
}

fn key_octets(entry: u32, pair: u32) -> array<Octet, 2> {
    let words = keys[entry * (HEAD_DIM / 16u) + pair];
    return array(unpacked(halves(words.xy)), unpacked(halves(words.zw)));
}

fn value_octet(entry: u32, octet: u32) -> Octet {
    return unpacked(halves(values[entry * (HEAD_DIM / 8u) + octet]));
}
