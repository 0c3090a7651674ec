//! Where the parts of an entry lie in a q8_0 cache. A head of a KV block has the codes of its 16 entries one after the other, four
//! to a word, and then their scales, two to a word, so that everything is aligned and no word belongs to two entries.

const CODE_WORDS: u32 = HEAD_DIM / 4u;
const SCALE_WORDS: u32 = (HEAD_DIM + 63u) / 64u;
const HEAD_WORDS: u32 = 16u * (CODE_WORDS + SCALE_WORDS);

// First word of the codes of an entry.
fn codes_at(entry: u32) -> u32 {
    return (entry >> 4u) * HEAD_WORDS + (entry & 15u) * CODE_WORDS;
}

// First word of its scales.
fn scales_at(entry: u32) -> u32 {
    return (entry >> 4u) * HEAD_WORDS + 16u * CODE_WORDS + (entry & 15u) * SCALE_WORDS;
}
