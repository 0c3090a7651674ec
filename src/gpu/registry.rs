//! Compiles variants into pipelines, each once.

use super::device::ShaderMode;
use super::kept::Kept;
use super::profile::Profile;
use super::reflect::{self, Binding, BindingKind};
use super::shader::{self, Variant};
use crate::error::{Error, Result};
use rayon::prelude::*;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// All pipelines of a device.
pub struct Registry {
    device: wgpu::Device,
    mode: ShaderMode,
    pipelines: Mutex<HashMap<Variant, Arc<Pipeline>>>,
    kept: OnceLock<KeptPipelines>,
}

/// The driver's cache of compiled pipelines, and the file that it came from and goes to.
struct KeptPipelines {
    raw: wgpu::PipelineCache,
    file: Kept,
    /// Its content, as far as it was of use.
    found: Option<Vec<u8>>,
}

/// A compiled variant.
pub struct Pipeline {
    /// What it was made from.
    pub variant: Variant,
    /// What it binds.
    pub bindings: Vec<Binding>,
    pub(super) raw: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
}

impl Registry {
    pub(super) fn new(device: wgpu::Device, mode: ShaderMode) -> Self {
        Self { device, mode, pipelines: Mutex::default(), kept: OnceLock::new() }
    }

    /// From now on, lets the driver find what it compiled in earlier runs in a file in `folder`, where the backend has such a
    /// thing (Vulkan; the drivers of the others keep what they compile by themselves). Only the first call counts.
    pub fn keep_in(&self, folder: &Path, profile: &Profile) {
        if !self.device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return;
        }
        self.kept.get_or_init(|| {
            let file = Kept::new(folder, "pipelines", profile);
            let found = file.read();
            let descriptor =
                wgpu::PipelineCacheDescriptor { label: Some("kept"), data: found.as_deref(), fallback: true };
            // SAFETY: the bytes are those that `get_data` gave to `save` on this adapter with this driver and version: the
            // file's name says so, and its checksum that they are whole. wgpu checks its own header of them besides.
            let raw = unsafe { self.device.create_pipeline_cache(&descriptor) };
            KeptPipelines { raw, file, found }
        });
    }

    /// Writes what the driver has compiled to the file of [`keep_in`](Self::keep_in), if that is new. A cache that cannot be
    /// written costs time at the next start and nothing else, so that is only logged.
    pub fn save(&self) {
        let Some(KeptPipelines { raw, file, found }) = self.kept.get() else { return };
        if let Some(data) = raw.get_data().filter(|data| found.as_ref() != Some(data))
            && let Err(error) = file.write(&data)
        {
            log::warn!("{error}");
        }
    }

    /// The pipeline for `variant`, compiled now if it is new.
    ///
    /// # Errors
    /// The shader is broken, which is a bug of ours.
    pub fn get(&self, variant: &Variant) -> Result<Arc<Pipeline>> {
        // Compiled outside the lock, so that several threads can warm up together; the loser of a race is dropped.
        if let Some(found) = self.lock().get(variant) {
            return Ok(found.clone());
        }
        let pipeline = Arc::new(self.compile(variant)?);
        Ok(self.lock().entry(variant.clone()).or_insert(pipeline).clone())
    }

    /// Whether `variant` is compiled already.
    pub fn has(&self, variant: &Variant) -> bool {
        self.lock().contains_key(variant)
    }

    /// Compiles what is new among `variants`, on all cores.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn warm_up(&self, variants: &[Variant]) -> Result<()> {
        variants.par_iter().try_for_each(|variant| self.get(variant).map(drop))
    }

    /// Number of pipelines compiled so far.
    pub fn pipeline_count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Variant, Arc<Pipeline>>> {
        // The map is only ever inserted into, so a panic elsewhere cannot have left it half changed.
        self.pipelines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compile(&self, variant: &Variant) -> Result<Pipeline> {
        let linked = shader::link(variant)?;
        let reflection = reflect::reflect(&linked).map_err(|error| error.context(variant))?;
        let label = variant.to_string();
        // Whatever goes wrong here is this pipeline's failure and not the device's: others may do without it.
        let filters = [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation];
        let scopes = filters.map(|filter| self.device.push_error_scope(filter));
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(&label),
            source: wgpu::ShaderSource::Wgsl(linked.source.as_str().into()),
        };
        let module = match self.mode {
            ShaderMode::Checked => self.device.create_shader_module(descriptor),
            // SAFETY: our kernels check their own bounds and bound their own loops; the tests run every one of them
            // in checked mode too and require the same results.
            ShaderMode::Trusted => unsafe {
                self.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
            },
        };
        let entries: Vec<_> = reflection.bindings.iter().map(layout_entry).collect();
        let layout = self
            .device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(&label), entries: &entries });
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(&label),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let raw = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&label),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                // Every kernel writes workgroup memory before it reads it; clearing costs SwiftShader a thousandfold.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: self.kept.get().map(|kept| &kept.raw),
        });
        // Scopes close in the opposite order.
        let mut failure = None;
        for scope in scopes.into_iter().rev() {
            failure = pollster::block_on(scope.pop()).or(failure);
        }
        match failure {
            Some(wgpu::Error::OutOfMemory { .. }) => {
                Err(Error::memory(format!("{label}: no memory left to compile it")))
            }
            Some(error) => Err(Error::bug(format!("{label}: {error}"))),
            None => Ok(Pipeline { variant: variant.clone(), bindings: reflection.bindings, raw, layout }),
        }
    }
}

fn layout_entry(binding: &Binding) -> wgpu::BindGroupLayoutEntry {
    let ty = match binding.kind {
        BindingKind::Read => wgpu::BufferBindingType::Storage { read_only: true },
        BindingKind::ReadWrite => wgpu::BufferBindingType::Storage { read_only: false },
        BindingKind::Uniform => wgpu::BufferBindingType::Uniform,
    };
    wgpu::BindGroupLayoutEntry {
        binding: binding.index,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    }
}
