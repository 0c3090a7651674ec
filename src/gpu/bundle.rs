//! Bundles: our software graph.
//!
//! wgpu has no command buffer that can be submitted twice. A bundle is the next best thing: a prepared list of
//! (pipeline, bind group, grid) that is encoded again, in a tight loop, for every step. It holds no allocation, no
//! upload and no value that depends on data: all of that lives in buffers which the dispatches read. Encoding a bundle
//! twice in one command buffer means two steps.

use super::device::Gpu;
use super::memory::{Buffer, Slice};
use super::registry::Pipeline;
use super::shader::Variant;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// A prepared list of work.
#[derive(Clone, Default)]
pub struct Bundle {
    ops: Vec<Op>,
    dispatch_count: usize,
}

#[derive(Clone)]
enum Op {
    Dispatch(Dispatch),
    Copy { source: Buffer, source_offset: u64, target: Buffer, target_offset: u64, bytes: u64 },
}

/// One dispatch of a bundle.
#[derive(Clone)]
pub struct Dispatch {
    /// What runs.
    pub pipeline: Arc<Pipeline>,
    /// Workgroups.
    pub grid: [u32; 3],
    /// What it is called in the step.
    pub label: &'static str,
    pub(super) group: wgpu::BindGroup,
    /// Bytes behind each of the pipeline's bindings.
    bound: Arc<[u64]>,
}

impl Dispatch {
    /// Bytes that are bound to `name`; 0 if the kernel has no such binding.
    pub fn bytes_of(&self, name: &str) -> u64 {
        let position = self.pipeline.bindings.iter().position(|binding| binding.name == name);
        position.map_or(0, |position| self.bound[position])
    }
}

impl Bundle {
    /// Number of dispatches.
    pub fn dispatch_count(&self) -> usize {
        self.dispatch_count
    }

    /// Its dispatches, in order.
    pub fn dispatches(&self) -> impl Iterator<Item = &Dispatch> {
        self.ops.iter().filter_map(|op| match op {
            Op::Dispatch(dispatch) => Some(dispatch),
            Op::Copy { .. } => None,
        })
    }

    /// How often each label occurs, in order of first occurrence.
    pub fn census(&self) -> Vec<(&'static str, usize)> {
        let mut counts: Vec<(&'static str, usize)> = Vec::new();
        for Dispatch { label, .. } in self.dispatches() {
            match counts.iter_mut().find(|(name, _)| name == label) {
                Some((_, count)) => *count += 1,
                None => counts.push((label, 1)),
            }
        }
        counts
    }

    /// The bundle without the dispatches called `label`; for measuring what they cost.
    pub fn without(&self, label: &str) -> Self {
        let called = |op: &&Op| matches!(op, Op::Dispatch(dispatch) if dispatch.label == label);
        Self::new(self.ops.iter().filter(|op| !called(op)).cloned().collect())
    }

    /// Only the dispatches that `keep` names, for measuring them by themselves.
    pub fn only(&self, keep: impl Fn(&Dispatch) -> bool) -> Self {
        Self::new(self.dispatches().filter(|dispatch| keep(dispatch)).cloned().map(Op::Dispatch).collect())
    }

    /// Its first dispatch, and the first one of `variant`.
    pub fn first_and(&self, variant: &Variant) -> Self {
        let wanted = self.dispatches().skip(1).find(|dispatch| dispatch.pipeline.variant == *variant);
        Self::new(self.dispatches().next().into_iter().chain(wanted).cloned().map(Op::Dispatch).collect())
    }

    fn new(ops: Vec<Op>) -> Self {
        let dispatch_count = ops.iter().filter(|op| matches!(op, Op::Dispatch(_))).count();
        Self { ops, dispatch_count }
    }

    /// Forgets the list and keeps its memory.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.dispatch_count = 0;
    }

    /// Appends a copy of `bytes` (a multiple of four) between two different buffers.
    pub fn copy(&mut self, source: &Buffer, source_offset: u64, target: &Buffer, target_offset: u64, bytes: u64) {
        let (source, target) = (source.clone(), target.clone());
        self.ops.push(Op::Copy { source, source_offset, target, target_offset, bytes });
    }

    /// Writes the list into `encoder`: one compute pass, interrupted only by copies.
    pub fn encode(&self, encoder: &mut wgpu::CommandEncoder) {
        self.encode_part(encoder, 0, 1);
    }

    /// Writes piece `part` of `parts` nearly equal pieces of the list.
    pub fn encode_part(&self, encoder: &mut wgpu::CommandEncoder, part: usize, parts: usize) {
        let bound = |part: usize| self.ops.len() * part / parts;
        let mut ops = self.ops[bound(part)..bound(part + 1)].iter().peekable();
        while let Some(first) = ops.peek() {
            if let Op::Copy { source, source_offset, target, target_offset, bytes } = first {
                encoder.copy_buffer_to_buffer(source.raw(), *source_offset, target.raw(), *target_offset, *bytes);
                ops.next();
                continue;
            }
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            let mut current: Option<&Arc<Pipeline>> = None;
            while let Some(Op::Dispatch(Dispatch { pipeline, group, grid: [x, y, z], .. })) = ops.peek() {
                if !current.is_some_and(|current| Arc::ptr_eq(current, pipeline)) {
                    pass.set_pipeline(&pipeline.raw);
                    current = Some(pipeline);
                }
                pass.set_bind_group(0, group, &[]);
                pass.dispatch_workgroups(*x, *y, *z);
                ops.next();
            }
        }
    }
}

/// Records dispatches and remembers bind groups, so that bundles of different sizes share them.
#[derive(Default)]
pub struct Recorder {
    groups: HashMap<GroupKey, wgpu::BindGroup>,
    ops: Vec<Op>,
    group_count: u64,
}

/// Address of a pipeline (which lives as long as its device's registry), then (buffer, offset, bytes) of each binding.
type GroupKey = (usize, Vec<(u64, u64, u64)>);

impl Recorder {
    /// Appends one dispatch. `arguments` name every binding of the pipeline, in any order. An empty grid records nothing.
    ///
    /// # Errors
    /// A name that the kernel does not bind, one left out, or a grid beyond the adapter's limit: bugs of ours.
    pub fn dispatch(
        &mut self,
        gpu: &Gpu,
        label: &'static str,
        pipeline: &Arc<Pipeline>,
        arguments: &[(&str, &Slice)],
        grid: [u32; 3],
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let limit = gpu.profile.max_groups;
        if grid.iter().any(|&count| count > limit) {
            return Err(Error::bug(format!("{label}: grid {grid:?} is beyond {limit} workgroups")));
        }
        let argument = |name: &str| {
            let found = arguments.iter().find(|(given, _)| *given == name);
            found.map(|(_, slice)| *slice).ok_or_else(|| Error::bug(format!("{label}: nothing is bound to {name}")))
        };
        let slices = pipeline.bindings.iter().map(|binding| argument(&binding.name)).collect::<Result<Vec<_>>>()?;
        if let Some((name, _)) = arguments.iter().find(|(name, _)| !pipeline.bindings.iter().any(|b| b.name == *name)) {
            return Err(Error::bug(format!("{label}: the kernel binds no {name}")));
        }
        let key = (
            Arc::as_ptr(pipeline) as usize,
            slices.iter().map(|slice| (slice.buffer.id(), slice.offset, slice.bytes)).collect(),
        );
        let groups = &mut self.groups;
        let group_count = &mut self.group_count;
        let group = groups.entry(key).or_insert_with(|| {
            *group_count += 1;
            let entries: Vec<_> = (pipeline.bindings.iter().zip(&slices))
                .map(|(binding, slice)| wgpu::BindGroupEntry {
                    binding: binding.index,
                    resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                        buffer: slice.buffer.raw(),
                        offset: slice.offset,
                        size: std::num::NonZeroU64::new(slice.bytes),
                    }),
                })
                .collect();
            gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(label),
                layout: &pipeline.layout,
                entries: &entries,
            })
        });
        let group = group.clone();
        let bound = slices.iter().map(|slice| slice.bytes).collect();
        self.ops.push(Op::Dispatch(Dispatch { pipeline: pipeline.clone(), grid, label, group, bound }));
        Ok(())
    }

    /// Appends a copy. Interrupts the compute pass, so it belongs to the rim of a step.
    pub fn copy(&mut self, source: &Slice, target: &Buffer, target_offset: u64) {
        self.ops.push(Op::Copy {
            source: source.buffer.clone(),
            source_offset: source.offset,
            target: target.clone(),
            target_offset,
            bytes: source.bytes,
        });
    }

    /// Hands out what was recorded and starts afresh; bind groups are kept.
    pub fn finish(&mut self) -> Bundle {
        Bundle::new(std::mem::take(&mut self.ops))
    }

    /// Bind groups created so far: constant once every bundle has been recorded.
    pub fn group_count(&self) -> u64 {
        self.group_count
    }
}
