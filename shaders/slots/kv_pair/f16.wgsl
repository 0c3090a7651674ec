//! As f16, two to a word.

alias KvPair = u32;

fn pack_pair(values: vec2<f32>) -> KvPair {
    // Clamped: a value beyond f16 would turn into an infinity and spread.
    return pack2x16float(clamp(values, vec2(-65504.0), vec2(65504.0)));
}
