//! Philox-2x32-10, bit for bit as in src/base/rng.rs.

const PHILOX_MULTIPLIER: u32 = 0xd256d193u;
const PHILOX_WEYL: u32 = 0x9e3779b9u;

// High half of a 32 x 32 bit product; WGSL has no wide multiply.
fn multiply_high(a: u32, b: u32) -> u32 {
    let a_low = a & 0xffffu;
    let a_high = a >> 16u;
    let b_low = b & 0xffffu;
    let b_high = b >> 16u;
    let low = a_low * b_low;
    let middle = a_high * b_low + (low >> 16u);
    let cross = a_low * b_high + (middle & 0xffffu);
    return a_high * b_high + (middle >> 16u) + (cross >> 16u);
}

fn philox2x32(counter: vec2<u32>, seed: u32) -> vec2<u32> {
    var state = counter;
    var key = seed;
    for (var round = 0u; round < 10u; round++) {
        let high = multiply_high(PHILOX_MULTIPLIER, state.x);
        state = vec2(high ^ key ^ state.y, PHILOX_MULTIPLIER * state.x);
        key += PHILOX_WEYL;
    }
    return state;
}

// A number in the open interval (0, 1) for the token at `position`.
fn token_uniform(seed_low: u32, seed_high: u32, position: u32) -> f32 {
    let word = philox2x32(vec2(position, seed_high), seed_low).x;
    return (f32(word >> 9u) + 0.5) * (1.0 / 8388608.0);
}
