//! Who multiplies with which expert. Pair `row * chosen + i` is a token row with the i-th of its experts. Word 0 of the routes
//! counts tiles; then each tile has the number of its expert and its pairs, as many as the product's register tile holds.

// Fills the places that a tile lacks pairs for.
const NO_PAIR: u32 = 0xffffffffu;

fn route_at(index: u32, tile: u32) -> u32 {
    return 1u + index * (tile + 1u);
}
