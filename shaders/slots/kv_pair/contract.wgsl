// How two neighbouring elements of a key or a value are stored, where elements are stored by themselves.

alias KvPair = u32;
fn pack_pair(values: vec2<f32>) -> KvPair { return 0u; }
