//! Which four of the 32 rows of a group lane l of eight owns in a product: 2 l, 2 l + 1, 2 l + 16 and 2 l + 17. They lie in pairs, so
//! that planes are read and outputs written two rows at a time.

fn first_own_row(lane: u32) -> u32 {
    return 2u * lane;
}

// From the first of them to the i-th.
fn to_own_row(i: u32) -> u32 {
    return (i & 1u) + (i & 2u) * 8u;
}
