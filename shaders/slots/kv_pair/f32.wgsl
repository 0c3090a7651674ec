//! As f32.

alias KvPair = vec2<f32>;

fn pack_pair(values: vec2<f32>) -> KvPair {
    return values;
}
