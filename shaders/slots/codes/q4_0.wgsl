//! slot weights
// Nibbles less 8, times a scale.

const SIGNED: bool = false;
const HALVES: bool = false;

fn codes4(block: Block, i: u32) -> u32 {
    return (block.nibbles[i & 3u] >> select(0u, 4u, i >= 4u)) & 0x0f0f0f0fu;
}

fn block_term(block: Block, products: vec2<f32>, sums: vec2<f32>) -> f32 {
    return block.scale * ((products.x + products.y) - 8.0 * (sums.x + sums.y));
}
