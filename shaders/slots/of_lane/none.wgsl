//! Not asked for.

fn of_lane(value: vec2<f32>, i: u32) -> vec2<f32> {
    return value;
}
