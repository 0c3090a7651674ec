// Cosine and sine by which pair `pair` of a head turns at `position`; pairs are ROTARY_DIM / 2 elements apart.

fn turn(position: u32, pair: u32) -> vec2<f32> { return vec2(1.0, 0.0); }
