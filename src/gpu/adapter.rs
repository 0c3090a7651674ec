//! Finds adapters, chooses one, and describes it as a [`Profile`].

use super::profile::{DeviceKind, MatrixTile, Profile};
use super::quirks;
use crate::error::{Error, Result};

/// Which adapter to use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AdapterChoice {
    /// A discrete GPU before an integrated one before anything else before a software adapter.
    #[default]
    Best,
    /// Position in the list that `octavo doctor` prints.
    Index(usize),
    /// Part of the name, driver or backend, in any case.
    Name(String),
}

impl AdapterChoice {
    /// Reads what a user typed: a number is an index, anything else a name.
    pub fn parse(text: &str) -> Self {
        match text.parse() {
            Ok(index) => Self::Index(index),
            Err(_) => Self::Name(text.to_owned()),
        }
    }
}

/// An adapter that is there.
#[derive(Clone, Debug)]
pub struct FoundAdapter {
    pub(super) raw: wgpu::Adapter,
    /// Its description.
    pub profile: Profile,
}

/// All adapters, in a stable order.
///
/// # Errors
/// `OCTAVO_DISABLE` names a feature that does not exist.
pub fn list_adapters() -> Result<Vec<FoundAdapter>> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::PRIMARY,
        // Validation layers and the checks of indirect dispatches distort timing, and nothing here needs them.
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let disabled = std::env::var("OCTAVO_DISABLE").unwrap_or_default();
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    adapters.into_iter().map(|raw| describe(raw, &disabled)).collect()
}

fn describe(raw: wgpu::Adapter, disabled: &str) -> Result<FoundAdapter> {
    let mut profile = profile_of(&raw.get_info(), raw.features(), &raw.limits());
    if raw.features().contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX) {
        profile.matrix = matrix_tile(&raw.cooperative_matrix_properties(), &profile);
    }
    for reason in quirks::apply(&mut profile) {
        log::info!("{}: {reason}", profile.name);
    }
    let unknown = profile.disable(disabled);
    match unknown.is_empty() {
        true => Ok(FoundAdapter { raw, profile }),
        false => Err(Error::config(format!(
            "OCTAVO_DISABLE names {}, which is no feature; known are f16, int64, subgroups, timestamps and matrix",
            unknown.join(", ")
        ))),
    }
}

/// The largest tile of f16 factors and f32 sums, if subgroups surely have 32 lanes: the kernel gives each lane a row.
fn matrix_tile(units: &[wgpu::CooperativeMatrixProperties], profile: &Profile) -> Option<MatrixTile> {
    use wgpu::CooperativeScalarType::{F16, F32};
    // Metal does not tell the size, but Apple's GPUs, the only ones there with such units, have 32 lanes.
    let wide = profile.backend == "metal" || profile.subgroups == Some(32..=32);
    let has = |size: u32| {
        let fits = |unit: &&wgpu::CooperativeMatrixProperties| {
            [unit.m_size, unit.n_size, unit.k_size] == [size; 3] && (unit.ab_type, unit.cr_type) == (F16, F32)
        };
        units.iter().find(fits).is_some()
    };
    match (wide && profile.f16, has(16), has(8)) {
        (true, true, _) => Some(MatrixTile::Sixteen),
        (true, false, true) => Some(MatrixTile::Eight),
        _ => None,
    }
}

/// The profile of an adapter with these properties.
pub fn profile_of(info: &wgpu::AdapterInfo, features: wgpu::Features, limits: &wgpu::Limits) -> Profile {
    let kind = match info.device_type {
        wgpu::DeviceType::Cpu => DeviceKind::Cpu,
        wgpu::DeviceType::IntegratedGpu => DeviceKind::Integrated,
        wgpu::DeviceType::DiscreteGpu => DeviceKind::Discrete,
        _ => DeviceKind::Other,
    };
    // wgpu hard-codes 4..64 on Metal although the hardware uses 32: a range that a kernel cannot rely on.
    let sizes = info.subgroup_min_size..=info.subgroup_max_size;
    Profile {
        name: info.name.clone(),
        backend: info.backend.to_str().to_owned(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        vendor: info.vendor,
        kind,
        max_binding: limits.max_storage_buffer_binding_size,
        max_buffer: limits.max_buffer_size,
        offset_align: u64::from(
            limits.min_storage_buffer_offset_alignment.max(limits.min_uniform_buffer_offset_alignment),
        ),
        shared_bytes: limits.max_compute_workgroup_storage_size,
        // Our workgroups are lines, or nearly so.
        max_invocations: limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x),
        max_groups: limits.max_compute_workgroups_per_dimension,
        subgroups: features.contains(wgpu::Features::SUBGROUP).then_some(sizes),
        f16: features.contains(wgpu::Features::SHADER_F16),
        int64: features.contains(wgpu::Features::SHADER_INT64),
        timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
        products: None,
        // `describe` asks for it.
        matrix: None,
    }
}

/// Takes the adapter that `choice` names.
///
/// # Errors
/// There is no adapter at all, or none that fits; the message lists those that exist.
pub fn choose(mut adapters: Vec<FoundAdapter>, choice: &AdapterChoice) -> Result<FoundAdapter> {
    if adapters.is_empty() {
        return Err(Error::config(
            "no GPU adapter was found; install a Vulkan driver (on Debian and Ubuntu the software driver is \
             `apt-get install libvulkan1 mesa-vulkan-drivers`), then look again with `octavo doctor`",
        ));
    }
    let position = match choice {
        AdapterChoice::Best => (0..adapters.len()).min_by_key(|&index| match adapters[index].profile.kind {
            DeviceKind::Discrete => 0,
            DeviceKind::Integrated => 1,
            DeviceKind::Other => 2,
            DeviceKind::Cpu => 3,
        }),
        AdapterChoice::Index(index) => (*index < adapters.len()).then_some(*index),
        AdapterChoice::Name(part) => {
            let part = part.to_lowercase();
            adapters.iter().position(|FoundAdapter { profile, .. }| {
                [&profile.name, &profile.driver, &profile.backend]
                    .iter()
                    .any(|text| text.to_lowercase().contains(&part))
            })
        }
    };
    match position {
        Some(index) => Ok(adapters.swap_remove(index)),
        None => {
            let names: Vec<String> = (adapters.iter().enumerate())
                .map(|(index, found)| format!("{index}: {} ({})", found.profile.name, found.profile.backend))
                .collect();
            Err(Error::config(format!("no adapter matches {choice:?}; there are {}", names.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_tiles_are_the_largest_of_halves_with_single_sums() {
        use wgpu::CooperativeScalarType::{F16, F32};
        let unit = |size, ab_type, cr_type| wgpu::CooperativeMatrixProperties {
            m_size: size,
            n_size: size,
            k_size: size,
            ab_type,
            cr_type,
            saturating_accumulation: false,
        };
        let card = Profile::cuda_class();
        let both = [unit(8, F16, F32), unit(16, F16, F16), unit(16, F16, F32)];
        assert_eq!(matrix_tile(&both, &card), Some(MatrixTile::Sixteen));
        assert_eq!(matrix_tile(&both[..2], &card), Some(MatrixTile::Eight));
        assert_eq!(matrix_tile(&[unit(8, F32, F32)], &card), None);
        let wider = Profile { subgroups: Some(64..=64), ..card.clone() };
        assert_eq!(matrix_tile(&both, &wider), None);
        let apple = Profile { backend: "metal".into(), subgroups: Some(4..=64), ..card.clone() };
        assert_eq!(matrix_tile(&both[..1], &apple), Some(MatrixTile::Eight));
        assert_eq!(matrix_tile(&both, &Profile { f16: false, ..card }), None);
    }
}
