//! x * sigmoid(x).

fn activate(x: f32) -> f32 {
    // Beyond the clamp e^-x leaves f32, and the result is 0 (or x) to the last bit anyway.
    return x / (1.0 + exp(clamp(-x, -80.0, 80.0)));
}
