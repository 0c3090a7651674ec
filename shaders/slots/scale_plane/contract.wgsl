// The plane of scales: the 32 words of a group of rows that begin at word `at` lie in the order of the lanes that own the rows in a
// product, four to a lane. `scale_words` gives those of rows 2 l, 2 l + 1, 2 l + 16 and 2 l + 17 for lane l.

fn scale_words(at: u32, lane: u32) -> vec4<u32> { return vec4(0u); }
