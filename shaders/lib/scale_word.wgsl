//! The word of one row.

fn scale_word(at: u32, row: u32) -> u32 {
    let words = scale_words(at, (row & 15u) / 2u);
    let pair = select(words.xy, words.zw, row >= 16u);
    return select(pair.x, pair.y, (row & 1u) == 1u);
}
