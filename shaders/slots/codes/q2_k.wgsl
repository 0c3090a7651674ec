//! slot weights
// Two bits times a scale, less a minimum, for each half.

const SIGNED: bool = false;
const HALVES: bool = true;

fn codes4(block: Block, i: u32) -> u32 {
    let word = select(block.pairs.x, block.pairs.y, (i & 1u) == 1u);
    return (word >> (2u * (i / 2u))) & 0x03030303u;
}

fn block_term(block: Block, products: vec2<f32>, sums: vec2<f32>) -> f32 {
    let scaled = fma(block.scale.x, products.x, block.scale.y * products.y);
    return scaled - fma(block.minimum.x, sums.x, block.minimum.y * sums.y);
}
