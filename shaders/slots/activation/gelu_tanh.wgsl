//! GELU in its tanh form: x / 2 * (1 + tanh u), which is x * sigmoid(2 u), for u = sqrt(2 / pi) (x + 0.044715 x^3).

fn activate(x: f32) -> f32 {
    // At the first clamp 2 u is beyond the second; there e^-2u leaves f32, and the result is 0 (or x) to the last bit anyway.
    let y = clamp(x, -10.0, 10.0);
    let twice = 1.5957691216057308 * y * fma(0.044715 * y, y, 1.0);
    return x / (1.0 + exp(clamp(-twice, -80.0, 80.0)));
}
