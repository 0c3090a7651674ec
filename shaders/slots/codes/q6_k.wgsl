//! slot weights
// Six bits less 32, times a scale for each half.

const SIGNED: bool = false;
const HALVES: bool = true;

fn codes4(block: Block, i: u32) -> u32 {
    let word = select(block.upper.x, block.upper.y, (i & 1u) == 1u);
    let upper = ((word >> (2u * (i / 2u))) & 0x03030303u) << 4u;
    return ((block.nibbles[i & 3u] >> select(0u, 4u, i >= 4u)) & 0x0f0f0f0fu) | upper;
}

fn block_term(block: Block, products: vec2<f32>, sums: vec2<f32>) -> f32 {
    let whole = products - 32.0 * sums;
    return fma(block.scale.x, whole.x, block.scale.y * whole.y);
}
