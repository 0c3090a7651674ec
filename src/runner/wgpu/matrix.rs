//! A weight matrix on the device: its planes, cut by rows into shards that a binding can hold.

use super::load::Loader;
use crate::base::DType;
use crate::error::Result;
use crate::gpu::memory::{Slice, Use};
use crate::gpu::{Gpu, Profile, Recorder};
use crate::kernels::matmul::{self, Epilogue, MatmulParams};
use crate::weights::pack::{Arrangement, FusedMatrix};
use crate::weights::shards::shard_groups;
use std::ops::Range;

/// The planes of one matrix.
pub(super) struct DeviceMatrix {
    pub(super) dtype: DType,
    /// Blocks of 32 columns.
    pub(super) blocks: usize,
    /// Output columns of a product: rows, or half of them where gate and up share the matrix.
    pub(super) outputs: usize,
    pub(super) shards: Vec<Shard>,
}

/// Some groups of rows of a matrix.
pub(super) struct Shard {
    /// (name in the shader, plane).
    pub(super) planes: Vec<(&'static str, Slice)>,
    /// Groups of 32 rows.
    pub(super) groups: usize,
    /// Outputs of the product that this shard computes.
    pub(super) outputs: Range<usize>,
}

/// Host memory for repacking: pieces of this size are packed in parallel and uploaded.
const PIECE_BYTES: usize = 16 << 20;

impl DeviceMatrix {
    /// Repacks `matrix` and uploads it.
    ///
    /// # Errors
    /// Out of memory, a row group that fits no binding, or the device was lost.
    pub(super) fn load(
        loader: &mut Loader<'_>,
        label: &str,
        matrix: &FusedMatrix<'_>,
        kind: Arrangement,
    ) -> Result<Self> {
        let words = matrix.plane_words_per_group();
        let limit = loader.binding_limit as usize;
        let ranges = shard_groups(matrix.groups(), 4 * words.codes.max(words.scales).max(words.bits), limit)?;
        let (outputs, outputs_per_group) = match kind {
            Arrangement::Stacked => (matrix.rows(), 32),
            Arrangement::GateUp => (matrix.rows() / 2, 16),
        };
        let mut shards = Vec::with_capacity(ranges.len());
        for range in ranges {
            let planes = load_groups(loader, label, matrix, range.clone())?;
            let first = range.start * outputs_per_group;
            let last = (range.end * outputs_per_group).min(outputs);
            shards.push(Shard { planes, groups: range.len(), outputs: first..last });
        }
        Ok(Self { dtype: matrix.dtype(), blocks: matrix.blocks(), outputs, shards })
    }

    /// Bytes of all planes.
    pub(super) fn bytes(&self) -> u64 {
        self.shards.iter().flat_map(|shard| &shard.planes).map(|(_, plane)| plane.bytes).sum()
    }
}

fn load_groups(
    loader: &mut Loader<'_>,
    label: &str,
    matrix: &FusedMatrix<'_>,
    range: Range<usize>,
) -> Result<Vec<(&'static str, Slice)>> {
    let words = matrix.plane_words_per_group();
    let sizes = [("codes", words.codes), ("scales", words.scales), ("bits", words.bits)];
    let mut buffers = Vec::new();
    for (name, words) in sizes.into_iter().filter(|(_, words)| *words > 0) {
        let bytes = (range.len() * words * 4) as u64;
        buffers.push((name, words, loader.gpu.memory.create(&format!("{label} {name}"), bytes, Use::Storage)?));
    }
    let per_piece = (PIECE_BYTES / (4 * words.codes)).max(1);
    let mut scratch = std::mem::take(&mut loader.scratch);
    for first in range.clone().step_by(per_piece) {
        let piece = first..(first + per_piece).min(range.end);
        for (plane, (_, words)) in scratch.iter_mut().zip(sizes) {
            plane.resize(piece.len() * words, 0);
        }
        let [codes, scales, bits] = &mut scratch;
        matrix.pack(piece.clone(), codes, scales, bits);
        for (name, words, buffer) in &buffers {
            let (_, plane) = sizes.iter().zip(&scratch).find(|((plane, _), _)| plane == name).expect("same names");
            let offset = ((piece.start - range.start) * words * 4) as u64;
            loader.uploader.write(buffer, offset, bytemuck::cast_slice(plane))?;
        }
        loader.advance(piece.len() * (words.codes + words.scales + words.bits) * 4);
    }
    loader.scratch = scratch;
    Ok(buffers.into_iter().map(|(name, _, buffer)| (name, buffer.whole())).collect())
}

/// One use of a matrix in the forward pass: where a product reads and writes.
pub(super) struct Product {
    label: &'static str,
    spec: matmul::Spec,
    bias: Option<Slice>,
    shards: Vec<ShardDispatch>,
}

/// A shard's planes by name, its groups of rows, and the parameters of its dispatch.
type ShardDispatch = (Vec<(&'static str, Slice)>, usize, Slice);

/// Where a product's output goes.
#[derive(Clone, Copy)]
pub(super) struct Target {
    /// First output column.
    pub(super) offset: usize,
    /// Width of an output row.
    pub(super) stride: usize,
    /// For products of wanted rows: first sample and most samples.
    pub(super) samples: Option<(usize, usize)>,
}

impl Product {
    /// Prepares the parameters of `matrix` used with `epilogue`.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn new(
        loader: &mut Loader<'_>,
        label: &'static str,
        matrix: &DeviceMatrix,
        epilogue: Epilogue,
        bias: Option<Slice>,
        target: Target,
    ) -> Result<Self> {
        let spec = matmul::Spec { dtype: matrix.dtype, epilogue, sampled: target.samples.is_some() };
        let (first_token, token_limit) = target.samples.unwrap_or((0, u32::MAX as usize));
        let mut shards = Vec::with_capacity(matrix.shards.len());
        for shard in &matrix.shards {
            let params = MatmulParams {
                blocks: matrix.blocks as u32,
                segments: matmul::segments(matrix.blocks, &loader.gpu.profile),
                group_count: shard.groups as u32,
                row_count: shard.outputs.len() as u32,
                out_offset: (target.offset + shard.outputs.start) as u32,
                out_stride: target.stride as u32,
                x_stride: (matrix.blocks * 8) as u32,
                first_token: first_token as u32,
                token_limit: token_limit as u32,
            };
            let params = loader.params(bytemuck::bytes_of(&params))?;
            shards.push((shard.planes.clone(), shard.groups, params));
        }
        Ok(Self { label, spec, bias, shards })
    }

    /// Records the product for a bucket of `tokens` rows.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record(
        &self,
        gpu: &Gpu,
        recorder: &mut Recorder,
        inputs: &Slice,
        x: &Slice,
        out: &Slice,
        tokens: usize,
    ) -> Result<()> {
        let profile: &Profile = &gpu.profile;
        let tile = matmul::tile(tokens);
        let pipeline = gpu.registry.get(&matmul::variant(&self.spec, tile, profile))?;
        for (planes, groups, params) in &self.shards {
            let mut arguments = vec![("inputs", inputs), ("x", x), ("out", out), ("params", params)];
            arguments.extend(planes.iter().map(|(name, plane)| (*name, plane)));
            arguments.extend(self.bias.iter().map(|bias| ("bias", bias)));
            recorder.dispatch(gpu, self.label, &pipeline, &arguments, matmul::grid(*groups, tokens, tile, profile))?;
        }
        Ok(())
    }
}
