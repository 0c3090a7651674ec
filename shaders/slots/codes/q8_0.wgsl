//! slot weights
// Signed bytes times a scale.

const SIGNED: bool = true;
const HALVES: bool = false;

fn codes4(block: Block, i: u32) -> u32 {
    let half = select(block.low, block.high, i >= 4u);
    return half[i & 3u];
}

fn block_term(block: Block, products: vec2<f32>, sums: vec2<f32>) -> f32 {
    return block.scale * (products.x + products.y);
}
