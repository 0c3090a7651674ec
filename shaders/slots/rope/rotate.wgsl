//! From a table.

@group(0) @binding(2) var<storage, read> cos_sin: array<vec2<f32>>;  // [position][ROTARY_DIM / 2]

fn turn(position: u32, pair: u32) -> vec2<f32> {
    return cos_sin[position * (ROTARY_DIM / 2u) + pair];
}
