//! How kernels read the planes of weights, besides their format. Layout of the planes: [`crate::quant`].

use crate::base::DType;
use crate::gpu::{DeviceKind, Profile};

/// Slot and slot file.
type Slot = (&'static str, &'static str);

/// The slots of a kernel that reads weights of a format.
///
/// MEASURED on lavapipe: a load runs lane by lane and word by word, and costs as much for a word of 64 bits as for one of 32. Rows
/// read in pairs and 64-bit words make a product with one token a third faster; on other adapters loads are wide as they are.
pub(super) fn slots(dtype: DType, profile: &Profile) -> Vec<Slot> {
    let plane = if reads_wide(profile) { "wide" } else { "narrow" };
    let mut slots = vec![("weights", dtype.name())];
    let (codes, scales) = match dtype {
        DType::F32 | DType::F16 | DType::BF16 => (false, false),
        // Their codes are vectors of two words.
        DType::Q2_K | DType::Q3_K => (false, true),
        _ => (true, true),
    };
    slots.extend(codes.then_some(("code_plane", plane)));
    slots.extend(scales.then_some(("scale_plane", plane)));
    slots
}

/// Whether this adapter reads 64-bit words.
pub(super) fn reads_wide(profile: &Profile) -> bool {
    profile.kind == DeviceKind::Cpu && profile.int64
}
