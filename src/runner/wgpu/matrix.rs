//! A weight matrix on the device: its planes, cut by rows into shards that a binding can hold. The matrices of a mixture's experts
//! stand one after another and are cut between experts.

use super::forms::Forms;
use super::forward::Recording;
use super::load::Loader;
use crate::base::DType;
use crate::error::{Error, Result};
use crate::gpu::memory::{Buffer, Slice, Use};
use crate::gpu::upload::Uploader;
use crate::kernels::Form;
use crate::kernels::matmul::{self, Batch, Epilogue, MatmulParams};
use crate::kernels::matmul_units;
use crate::weights::pack::{Arrangement, FusedMatrix, PlaneWords};
use crate::weights::shards::shard_groups;
use std::ops::Range;

/// The planes of one matrix, or of the matrices of several experts.
pub(super) struct DeviceMatrix {
    pub(super) dtype: DType,
    /// How its products take activations.
    pub(super) form: Form,
    /// Whether neither weights nor activations may be rounded any further, as matrix units do.
    pub(super) exact: bool,
    /// Blocks of 32 columns.
    pub(super) blocks: usize,
    /// Output columns of a product: rows (of one expert), or half of them where gate and up share the matrix.
    pub(super) outputs: usize,
    pub(super) shards: Vec<Shard>,
}

/// Some groups of rows of a matrix, or the matrices of some experts.
pub(super) struct Shard {
    /// (name in the shader, plane).
    pub(super) planes: Planes,
    /// Groups of 32 rows, of one expert.
    pub(super) groups: usize,
    /// Outputs of the product that this shard computes.
    pub(super) outputs: Range<usize>,
    /// Experts whose matrices it holds; one where there are none.
    pub(super) experts: Range<usize>,
}

/// (name in the shader, plane).
pub(super) type Planes = Vec<(&'static str, Slice)>;

/// Host memory for repacking: pieces of this size are packed in parallel, each while the one before it is uploaded.
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
        let largest = largest_plane_bytes(matrix);
        let ranges = shard_groups(matrix.groups(), largest, loader.binding_limit as usize)?;
        let (outputs, outputs_per_group) = outputs(matrix, kind);
        let mut shards = Vec::with_capacity(ranges.len());
        for range in ranges {
            let planes = UploadedPlanes::new(loader, label, matrix.plane_words_per_group(), range.len())?;
            planes.fill(loader, matrix, range.clone(), 0)?;
            let first = range.start * outputs_per_group;
            let last = (range.end * outputs_per_group).min(outputs);
            shards.push(Shard { planes: planes.finish(), groups: range.len(), outputs: first..last, experts: 0..1 });
        }
        let form = loader.form(matrix.dtype());
        Ok(Self { dtype: matrix.dtype(), form, exact: false, blocks: matrix.blocks(), outputs, shards })
    }

    /// Repacks the matrices of experts, all of one shape, and uploads them one after another.
    ///
    /// # Errors
    /// Formats differ, an expert fits no binding, out of memory, or the device was lost.
    pub(super) fn load_experts(
        loader: &mut Loader<'_>,
        label: &str,
        experts: &[FusedMatrix<'_>],
        kind: Arrangement,
    ) -> Result<Self> {
        let Some(first) = experts.first() else {
            return Err(Error::bug(format!("{label}: a mixture without experts")));
        };
        if let Some(other) = experts.iter().find(|expert| expert.dtype() != first.dtype()) {
            return Err(Error::load(format!(
                "{label}: experts of different types ({} and {}) are not supported; convert the model again with one type \
                 for all experts of a layer",
                first.dtype(),
                other.dtype()
            )));
        }
        let groups = first.groups();
        let expert_bytes = groups * largest_plane_bytes(first);
        if expert_bytes > loader.binding_limit as usize {
            return Err(Error::memory(format!(
                "{label}: one expert needs {expert_bytes} bytes, but a binding of this device holds {}; raise the binding \
                 limit or choose a more quantised file",
                loader.binding_limit
            )));
        }
        let (outputs, _) = outputs(first, kind);
        let mut shards = Vec::new();
        for range in shard_groups(experts.len(), expert_bytes, loader.binding_limit as usize)? {
            let planes = UploadedPlanes::new(loader, label, first.plane_words_per_group(), groups * range.len())?;
            for (place, expert) in experts[range.clone()].iter().enumerate() {
                planes.fill(loader, expert, 0..groups, place * groups)?;
            }
            shards.push(Shard { planes: planes.finish(), groups, outputs: 0..outputs, experts: range });
        }
        let form = loader.form(first.dtype());
        Ok(Self { dtype: first.dtype(), form, exact: false, blocks: first.blocks(), outputs, shards })
    }

    /// Whether every shard begins and ends with a block of 32 outputs.
    pub(super) fn has_whole_blocks(&self) -> bool {
        self.shards.iter().all(|shard| shard.outputs.start.is_multiple_of(32) && shard.outputs.end.is_multiple_of(32))
    }

    /// Bytes of all planes.
    pub(super) fn bytes(&self) -> u64 {
        self.shards.iter().flat_map(|shard| &shard.planes).map(|(_, plane)| plane.bytes).sum()
    }
}

fn largest_plane_bytes(matrix: &FusedMatrix<'_>) -> usize {
    let words = matrix.plane_words_per_group();
    4 * words.codes.max(words.scales).max(words.bits)
}

/// Outputs of a product, all and by group.
fn outputs(matrix: &FusedMatrix<'_>, kind: Arrangement) -> (usize, usize) {
    match kind {
        Arrangement::Stacked | Arrangement::Heads { .. } => (matrix.rows(), 32),
        Arrangement::GateUp => (matrix.rows() / 2, 16),
    }
}

/// Name, words of a group, and buffer of a plane, if the format has it.
type FilledPlane = Option<(&'static str, usize, Buffer)>;

/// Planes that are being filled.
struct UploadedPlanes {
    planes: [FilledPlane; 3],
}

/// Some groups of a matrix, packed and on their way to the device. Its memory is reused.
#[derive(Default)]
pub(super) struct Piece {
    planes: [PackedPlane; 3],
}

/// Words of a plane, and where they go.
#[derive(Default)]
struct PackedPlane {
    words: Vec<u32>,
    target: Option<(Buffer, u64)>,
}

impl Piece {
    /// Packs `groups`, of so many words each, for group `place` of the planes' buffers.
    fn pack(
        &mut self,
        matrix: &FusedMatrix<'_>,
        groups: Range<usize>,
        words: [usize; 3],
        targets: &[FilledPlane; 3],
        place: usize,
    ) {
        for ((plane, words), target) in self.planes.iter_mut().zip(words).zip(targets) {
            plane.words.resize(groups.len() * words, 0);
            plane.target = target.as_ref().map(|(_, words, buffer)| (buffer.clone(), (place * words * 4) as u64));
        }
        let [codes, scales, bits] = &mut self.planes;
        matrix.pack(groups, &mut codes.words, &mut scales.words, &mut bits.words);
    }

    /// Hands it to the device, once.
    ///
    /// # Errors
    /// The device was lost.
    pub(super) fn upload(&mut self, uploader: &mut Uploader<'_>) -> Result<()> {
        for PackedPlane { words, target } in &mut self.planes {
            if let Some((buffer, at)) = target.take() {
                uploader.write(&buffer, at, bytemuck::cast_slice(words))?;
            }
        }
        Ok(())
    }
}

impl UploadedPlanes {
    fn new(loader: &Loader<'_>, label: &str, words: PlaneWords, groups: usize) -> Result<Self> {
        let mut planes = [None, None, None];
        let sizes = [("codes", words.codes), ("scales", words.scales), ("bits", words.bits)];
        for (plane, (name, words)) in planes.iter_mut().zip(sizes).filter(|(_, (_, words))| *words > 0) {
            let bytes = (groups * words * 4) as u64;
            *plane = Some((name, words, loader.gpu.memory.create(&format!("{label} {name}"), bytes, Use::Storage)?));
        }
        Ok(Self { planes })
    }

    /// Uploads `groups` of `matrix` behind the first `offset` groups of the planes, in pieces.
    fn fill(
        &self,
        loader: &mut Loader<'_>,
        matrix: &FusedMatrix<'_>,
        groups: Range<usize>,
        offset: usize,
    ) -> Result<()> {
        let words = self.planes.each_ref().map(|plane| plane.as_ref().map_or(0, |(_, words, _)| *words));
        let per_piece = (PIECE_BYTES / (4 * words[0].max(1))).max(1);
        for first in groups.clone().step_by(per_piece) {
            let piece = first..(first + per_piece).min(groups.end);
            let place = offset + piece.start - groups.start;
            let bytes = piece.len() * words.iter().sum::<usize>() * 4;
            let (uploader, [next, before]) = (&mut loader.uploader, &mut loader.pieces);
            let (uploaded, ()) =
                rayon::join(|| before.upload(uploader), || next.pack(matrix, piece, words, &self.planes, place));
            uploaded?;
            loader.pieces.swap(0, 1);
            loader.advance(bytes);
        }
        Ok(())
    }

    fn finish(self) -> Planes {
        self.planes.into_iter().flatten().map(|(name, _, buffer)| (name, buffer.whole())).collect()
    }
}

/// One use of a matrix in the forward pass: where a product reads and writes.
pub(super) struct Product {
    label: &'static str,
    spec: matmul::Spec,
    exact: bool,
    bias: Option<Slice>,
    next_weight: Option<Slice>,
    shards: Vec<ShardDispatch>,
}

/// A shard's planes by name, its groups of rows, and the parameters of its dispatch.
type ShardDispatch = (Planes, usize, Slice);

/// Which rows a product reads.
#[derive(Clone, Copy)]
pub(super) enum Reads {
    /// All rows of the step.
    Rows,
    /// Wanted rows, gathered: first sample and most samples of a pass.
    Samples(usize, usize),
    /// Pairs of a row and an expert, so many of which share an input row.
    Pairs(usize),
}

/// What a product does besides multiplying.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) reads: Reads,
    /// First output column.
    pub(super) offset: usize,
    /// Width of an output row.
    pub(super) stride: usize,
    pub(super) epilogue: Epilogue,
    /// Where the epilogue adds one.
    pub(super) bias: Option<Slice>,
    /// Where the epilogue limits softly.
    pub(super) cap: Option<f32>,
    /// Epsilon of the norm whose factor the input rows lack.
    pub(super) normed: Option<f32>,
    /// Weight of the norm behind which the output is read next, if the product leaves its rows for that.
    pub(super) next_weight: Option<Slice>,
    /// Where the rotations of heads begin behind the list of rows, in vectors of four.
    pub(super) turns_at: u32,
}

impl Target {
    /// All rows, stored in rows of `stride`.
    pub(super) fn rows(stride: usize, epilogue: Epilogue) -> Self {
        Self {
            reads: Reads::Rows,
            offset: 0,
            stride,
            epilogue,
            bias: None,
            cap: None,
            normed: None,
            next_weight: None,
            turns_at: 0,
        }
    }
}

/// How many rows a product is recorded for.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    /// Rows in a register tile.
    pub(super) tile: u32,
    /// Tiles.
    pub(super) tiles: usize,
}

impl Extent {
    /// A bucket of `rows` rows.
    pub(super) fn rows(rows: usize) -> Self {
        let tile = matmul::tile(rows);
        Self { tile, tiles: rows.div_ceil(tile as usize) }
    }
}

impl Product {
    /// Prepares the parameters of `matrix`.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn new(
        loader: &mut Loader<'_>,
        label: &'static str,
        matrix: &DeviceMatrix,
        target: Target,
    ) -> Result<Self> {
        let (batch, (first_sample, sample_limit), pairs_per_input) = match target.reads {
            Reads::Rows => (Batch::Rows, (0, 0), 1),
            Reads::Samples(first, limit) => (Batch::Samples, (first, limit), 1),
            Reads::Pairs(sharing) => (Batch::Experts, (0, 0), sharing),
        };
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
                first_sample: first_sample as u32,
                sample_limit: sample_limit as u32,
                first_expert: shard.experts.start as u32,
                expert_count: shard.experts.len() as u32,
                pairs_per_input: pairs_per_input as u32,
                cap: target.cap.unwrap_or(0.0),
                norm_eps: target.normed.unwrap_or(0.0),
                turns_at: target.turns_at,
            };
            let params = loader.params(bytemuck::bytes_of(&params))?;
            shards.push((shard.planes.clone(), shard.groups, params));
        }
        let spec = matmul::Spec {
            dtype: matrix.dtype,
            form: matrix.form,
            normed: target.normed.is_some(),
            epilogue: target.epilogue,
            batch,
        };
        Ok(Self { label, spec, exact: matrix.exact, bias: target.bias, next_weight: target.next_weight, shards })
    }

    /// How it takes activations.
    pub(super) fn form(&self) -> Form {
        self.spec.form
    }

    /// Records the product.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record(&self, step: &mut Recording<'_>, x: Forms<'_>, out: &Slice, extent: Extent) -> Result<()> {
        let rows = match self.spec.batch {
            Batch::Experts => ("routes", &step.buffers.routes),
            Batch::Rows | Batch::Samples => ("inputs", &step.buffers.inputs),
        };
        self.record_with(step, x, out, extent, &[rows])
    }

    /// Records the product of heads, which go to the cache of the layer.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record_heads(
        &self,
        step: &mut Recording<'_>,
        x: Forms<'_>,
        keys: &Slice,
        values: &Slice,
        extent: Extent,
    ) -> Result<()> {
        let b = step.buffers;
        let also = [("rows", &b.rows_and_turns), ("keys", keys), ("values", values)];
        self.record_with(step, x, &b.qkv, extent, &also)
    }

    fn record_with(
        &self,
        step: &mut Recording<'_>,
        x: Forms<'_>,
        out: &Slice,
        extent: Extent,
        also: &[(&str, &Slice)],
    ) -> Result<()> {
        let profile = &step.gpu.profile;
        // All numbers of rows of a matrix go one way, so that its sums never depend on the batch.
        let units = profile.matrix.filter(|_| !self.exact && matmul_units::runs(&self.spec, profile));
        let variant = match units {
            Some(matrix) => matmul_units::variant(&self.spec, matrix),
            None => matmul::variant(&self.spec, extent.tile, profile),
        };
        for (planes, groups, params) in &self.shards {
            let mut arguments = vec![("x", x.of(self.spec.form)), ("params", params)];
            arguments.extend(also);
            match self.spec.epilogue {
                Epilogue::ActMulInt12(_) => arguments.push(("result", out)),
                Epilogue::AddLeft => arguments.extend([("out", out), ("result", &step.buffers.normed)]),
                _ => arguments.push(("out", out)),
            }
            arguments.extend(self.next_weight.iter().map(|weight| ("next_weight", weight)));
            arguments.extend(planes.iter().map(|(name, plane)| (*name, plane)));
            arguments.extend(self.bias.iter().map(|bias| ("bias", bias)));
            let grid = match units {
                Some(_) => matmul_units::grid(*groups, extent.tiles * extent.tile as usize),
                None => matmul::tile_grid(self.spec.epilogue, *groups, extent.tiles, profile),
            };
            step.dispatch(self.label, &variant, &arguments, grid)?;
        }
        Ok(())
    }
}
