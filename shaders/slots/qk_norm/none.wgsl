//! Heads are not normalised.

fn head_scale(squares: f32, lane: u32) -> f32 {
    return 1.0;
}

fn head_weight(key: bool, element: u32) -> f32 {
    return 1.0;
}
