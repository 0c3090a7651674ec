//! Functions whose built-in versions overflow for large arguments on some drivers, or are coarse for small ones.

// tanh to a few units in the last place, for every argument. The polynomial near zero is that of tanhf in the Cephes
// library (Moshier).
fn steady_tanh(x: f32) -> f32 {
    let size = abs(x);
    // Beyond the clamp tanh is 1 in f32.
    let far = sign(x) * (1.0 - 2.0 / (exp(2.0 * min(size, 10.0)) + 1.0));
    let z = min(size, 1.0) * min(size, 1.0);
    var series = fma(-5.70498872745e-3, z, 2.06390887954e-2);
    series = fma(series, z, -5.37397155531e-2);
    series = fma(series, z, 1.33314422036e-1);
    series = fma(series, z, -3.33332819422e-1);
    return select(far, fma(series * z, x, x), size < 0.625);
}

// Follows x near zero and never exceeds cap, but for what is not finite, which stays as it is: no cap may hide it.
fn soft_cap(x: f32, cap: f32) -> f32 {
    let finite = (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
    return select(x, cap * steady_tanh(x / cap), finite);
}
