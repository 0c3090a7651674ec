//! Integer arithmetic on sizes.

/// `value / unit`, rounded up.
pub const fn ceil_div(value: usize, unit: usize) -> usize {
    value.div_ceil(unit)
}

/// The smallest multiple of `unit` that is at least `value`.
pub const fn align_up(value: usize, unit: usize) -> usize {
    value.div_ceil(unit) * unit
}
