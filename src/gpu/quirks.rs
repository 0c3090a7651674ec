//! Drivers that need different treatment than they ask for: each entry with its reason.

use super::profile::Profile;

/// One exception.
struct Quirk {
    reason: &'static str,
    applies: fn(&Profile) -> bool,
    edit: fn(&mut Profile),
}

const AMD: u32 = 0x1002;

/// Checked in order; all that apply are used.
const QUIRKS: &[Quirk] = &[
    Quirk {
        reason: "MoltenVK on AMD gives wrong subgroup arithmetic (noted in llama.cpp's Vulkan backend)",
        applies: |profile| profile.driver.contains("MoltenVK") && profile.vendor == AMD,
        edit: |profile| profile.subgroups = None,
    },
    Quirk {
        // https://github.com/gfx-rs/wgpu/issues/9414
        reason: "Metal on recent macOS returns zeros for timestamps",
        applies: |profile| profile.backend == "metal",
        edit: |profile| profile.timestamps = false,
    },
];

/// Applies what is known about the adapter's driver and says what was changed.
pub fn apply(profile: &mut Profile) -> Vec<&'static str> {
    let mut reasons = Vec::new();
    for quirk in QUIRKS.iter().filter(|quirk| (quirk.applies)(profile)).collect::<Vec<_>>() {
        (quirk.edit)(profile);
        reasons.push(quirk.reason);
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::DeviceKind;

    #[test]
    fn quirks_touch_only_their_driver() {
        let mut plain = Profile::cuda_class();
        assert!(apply(&mut plain).is_empty());
        assert_eq!(plain, Profile::cuda_class());
        let mut molten = Profile {
            vendor: AMD,
            driver: "MoltenVK 1.2".into(),
            subgroups: Some(64..=64),
            ..Profile::baseline(DeviceKind::Discrete)
        };
        assert_eq!(apply(&mut molten).len(), 1);
        assert_eq!(molten.subgroups, None);
    }
}
