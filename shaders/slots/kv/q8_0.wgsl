//! Keys and values as signed bytes, with an f16 scale for each block of 32 elements.
//! use lib/kv_q8_0 lib/octet

@group(0) @binding(4) var<storage, read> keys: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read> values: array<vec2<u32>>;

// `scales` is the word that holds the scale of the octet's block, in its upper half for every second block.
fn scaled(codes: vec2<u32>, scales: u32, octet: u32) -> Octet {
    let scale = vec4(unpack2x16float(scales >> (octet / 4u % 2u * 16u)).x);
    return Octet(scale * vec4<f32>(unpack4xI8(codes.x)), scale * vec4<f32>(unpack4xI8(codes.y)));
}

fn key_octet(entry: u32, octet: u32) -> Octet {
    let scales = scales_at(entry) + octet / 8u;
    return scaled(keys[codes_at(entry) / 2u + octet], keys[scales / 2u][scales % 2u], octet);
}

fn key_octets(entry: u32, pair: u32) -> array<Octet, 2> {
    return array(key_octet(entry, 2u * pair), key_octet(entry, 2u * pair + 1u));
}

fn value_octet(entry: u32, octet: u32) -> Octet {
    let scales = scales_at(entry) + octet / 8u;
    return scaled(values[codes_at(entry) / 2u + octet], values[scales / 2u][scales % 2u], octet);
}
