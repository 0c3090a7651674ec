//! The device with its queue, profile, memory ledger and pipelines, and what happens when it fails.

use super::adapter::{self, AdapterChoice, FoundAdapter};
use super::memory::Ledger;
use super::profile::Profile;
use super::registry::Registry;
use crate::error::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex};

/// An open device. Dropping it gives everything back.
pub struct Gpu {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    /// What the adapter can do.
    pub profile: Profile,
    /// Every buffer, counted.
    pub memory: Ledger,
    /// Compiled pipelines.
    pub registry: Registry,
    failure: Arc<Mutex<Option<Failure>>>,
}

/// The first thing that went wrong.
#[derive(Clone, Debug)]
struct Failure {
    kind: ErrorKind,
    message: String,
}

/// How shaders are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ShaderMode {
    /// As trusted code: no bound checks beyond the driver's own.
    #[default]
    Trusted,
    /// With all of wgpu's run-time checks: slower, the same results.
    Checked,
}

const MATRIX_UNITS: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX.union(wgpu::Features::SHADER_F16);

impl Gpu {
    /// Opens the adapter that `choice` names.
    ///
    /// # Errors
    /// No such adapter, or the driver refuses to open it.
    pub fn open(choice: &AdapterChoice, mode: ShaderMode) -> Result<Self> {
        Self::open_adapter(adapter::choose(adapter::list_adapters()?, choice)?, mode)
    }

    /// Opens an adapter that was found before.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn open_adapter(found: FoundAdapter, mode: ShaderMode) -> Result<Self> {
        let FoundAdapter { raw, mut profile } = found;
        // No run-time checks are made around matrix units, so a checked device goes without.
        if mode == ShaderMode::Checked {
            profile.matrix = None;
        }
        let (units, experimental_features) = match profile.matrix {
            // SAFETY: what is experimental about it is one kernel, which is compared with another way to the same result before
            // it is used.
            Some(_) => (MATRIX_UNITS, unsafe { wgpu::ExperimentalFeatures::enabled() }),
            None => (wgpu::Features::empty(), wgpu::ExperimentalFeatures::disabled()),
        };
        let wanted = wgpu::Features::SUBGROUP
            | wgpu::Features::SHADER_F16
            | wgpu::Features::SHADER_INT64
            | wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::PIPELINE_CACHE;
        let opened = pollster::block_on(raw.request_device(&wgpu::DeviceDescriptor {
            label: Some("octavo"),
            required_features: (wanted & raw.features()) | units,
            experimental_features,
            required_limits: raw.limits(),
            memory_hints: wgpu::MemoryHints::Performance,
            ..Default::default()
        }));
        let (device, queue) = opened
            .map_err(|error| Error::config(format!("the driver of {} refused to open it: {error}", profile.name)))?;
        Ok(Self::from_parts(device, queue, profile, mode))
    }

    /// A device that executes nothing and can pretend to be any adapter; for tests and for measuring the host's share.
    pub fn noop(profile: Profile) -> Self {
        let (units, experimental_features) = match profile.matrix {
            // SAFETY: nothing is executed.
            Some(_) => (MATRIX_UNITS, unsafe { wgpu::ExperimentalFeatures::enabled() }),
            None => (wgpu::Features::empty(), wgpu::ExperimentalFeatures::disabled()),
        };
        let int64 = if profile.int64 { wgpu::Features::SHADER_INT64 } else { wgpu::Features::empty() };
        let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor {
            required_features: wgpu::Features::SUBGROUP | int64 | units,
            experimental_features,
            required_limits: wgpu::Limits {
                max_storage_buffer_binding_size: profile.max_binding,
                // As much as this backend has.
                max_buffer_size: profile.max_buffer.min(i32::MAX as u64),
                max_compute_workgroup_storage_size: profile.shared_bytes,
                max_compute_invocations_per_workgroup: profile.max_invocations,
                max_compute_workgroup_size_x: profile.max_invocations,
                min_storage_buffer_offset_alignment: profile.offset_align as u32,
                min_uniform_buffer_offset_alignment: profile.offset_align as u32,
                ..wgpu::Limits::default()
            },
            ..Default::default()
        });
        Self::from_parts(device, queue, profile, ShaderMode::Trusted)
    }

    fn from_parts(device: wgpu::Device, queue: wgpu::Queue, profile: Profile, mode: ShaderMode) -> Self {
        let failure: Arc<Mutex<Option<Failure>>> = Arc::default();
        let record = |slot: &Mutex<Option<Failure>>, kind, message: String| {
            log::error!("{message}");
            if let Ok(mut first) = slot.lock() {
                first.get_or_insert(Failure { kind, message });
            }
        };
        let slot = failure.clone();
        device.set_device_lost_callback(move |reason, message| {
            // Dropping the device ends here too; that is no failure.
            if reason != wgpu::DeviceLostReason::Destroyed {
                record(&slot, ErrorKind::DeviceLost, message);
            }
        });
        let slot = failure.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| match error {
            wgpu::Error::OutOfMemory { .. } => record(&slot, ErrorKind::Memory, "out of device memory".into()),
            other => record(&slot, ErrorKind::Bug, other.to_string()),
        }));
        Self {
            memory: Ledger::new(device.clone()),
            registry: Registry::new(device.clone(), mode),
            device,
            queue,
            profile,
            failure,
        }
    }

    /// Fails once anything went wrong on the device since it was opened.
    ///
    /// # Errors
    /// The first failure: loss of the device, lack of memory, or a validation error, which is a bug of ours.
    pub fn check(&self) -> Result<()> {
        match self.failure.lock() {
            Ok(slot) => match &*slot {
                Some(Failure { kind, message }) => Err(Error::new(*kind, message)),
                None => Ok(()),
            },
            Err(_) => Err(Error::bug("a thread died while it recorded a device failure")),
        }
    }

    /// Waits until everything submitted so far has run.
    ///
    /// # Errors
    /// The device was lost.
    pub fn wait_idle(&self) -> Result<()> {
        self.poll(wgpu::PollType::wait_indefinitely())
    }

    /// Lets wgpu make progress.
    ///
    /// # Errors
    /// The device was lost, or anything else went wrong on it before.
    pub(super) fn poll(&self, how: wgpu::PollType) -> Result<()> {
        // wgpu 30 panics where a wait finds the device lost. Its callback has run by then and no lock is held, so the loss
        // can be reported as what it is.
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.device.poll(how)));
        self.check()?;
        match polled {
            Ok(Ok(_) | Err(wgpu::PollError::Timeout)) => Ok(()),
            Ok(Err(error)) => Err(Error::new(ErrorKind::DeviceLost, format!("waiting for the GPU failed: {error}"))),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Destroys the device as a driver reset would, to exercise recovery.
    #[doc(hidden)]
    pub fn simulate_loss(&self) {
        if let Ok(mut first) = self.failure.lock() {
            first.get_or_insert(Failure { kind: ErrorKind::DeviceLost, message: "loss was simulated".into() });
        }
        self.device.destroy();
    }
}
