//! The list of the step's rows, which its first kernel makes: (token, slot, position, KV index). Behind it stand tables of rotations.

const NOTHING: u32 = 0xffffffffu;

@group(0) @binding(6) var<storage, read> rows: array<vec4<u32>>;
