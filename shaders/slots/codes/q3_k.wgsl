//! slot weights
// Three bits less 4, times a scale for each half.

const SIGNED: bool = false;
const HALVES: bool = true;

fn codes4(block: Block, i: u32) -> u32 {
    let word = select(block.pairs.x, block.pairs.y, (i & 1u) == 1u);
    return ((word >> (2u * (i / 2u))) & 0x03030303u) | (((block.third >> i) & 0x01010101u) << 2u);
}

fn block_term(block: Block, products: vec2<f32>, sums: vec2<f32>) -> f32 {
    let whole = products - 4.0 * sums;
    return fma(block.scale.x, whole.x, block.scale.y * whole.y);
}
