//! Applies the host's changes to slots and block tables, once a submission.

use crate::gpu::{Profile, Variant};

/// The only variant.
pub fn variant(profile: &Profile) -> Variant {
    Variant { kernel: "update", slots: vec![], consts: vec![], workgroup: [profile.row_lanes(64), 1, 1] }
}

/// One workgroup walks all changes.
pub fn grid() -> [u32; 3] {
    [1, 1, 1]
}

/// The only variant.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    vec![variant(profile)]
}
