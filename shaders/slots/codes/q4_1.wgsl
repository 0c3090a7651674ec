//! slot weights
// Nibbles times a scale, plus a minimum.

const SIGNED: bool = false;
const HALVES: bool = false;

fn codes4(block: Block, i: u32) -> u32 {
    return (block.nibbles[i & 3u] >> select(0u, 4u, i >= 4u)) & 0x0f0f0f0fu;
}

fn block_term(block: Block, products: vec2<f32>, sums: vec2<f32>) -> f32 {
    return fma(block.scale, products.x + products.y, block.minimum * (sums.x + sums.y));
}
