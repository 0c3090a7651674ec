//! Finds token, position and KV index of each row: decode rows take them from their slot.

use crate::gpu::{Profile, Variant};

/// The only variant.
pub fn variant(profile: &Profile) -> Variant {
    Variant { kernel: "resolve", slots: vec![], consts: vec![], workgroup: [profile.row_lanes(64), 1, 1] }
}

/// One lane a row.
pub fn grid(rows: usize, profile: &Profile) -> [u32; 3] {
    [rows.div_ceil(profile.row_lanes(64) as usize) as u32, 1, 1]
}

/// The only variant.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    vec![variant(profile)]
}
