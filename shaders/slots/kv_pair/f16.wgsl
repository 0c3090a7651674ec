//! As f16, two to a word.

alias KvPair = u32;

// Clamped: a value beyond f16 would turn into an infinity and spread. What is not finite stays so, to be seen in the logits.
fn pack_pair(values: vec2<f32>) -> KvPair {
    let finite = (bitcast<vec2<u32>>(values) & vec2(0x7f800000u)) != vec2(0x7f800000u);
    return pack2x16float(select(values, clamp(values, vec2(-65504.0), vec2(65504.0)), finite));
}
