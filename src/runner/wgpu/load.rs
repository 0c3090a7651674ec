//! Puts a model on the device: weights repacked and uploaded in bounded pieces, and the parameters of every dispatch.

use super::arena::Arena;
use super::attention::Attention;
use super::forward::Recording;
use super::limits::weight_bytes;
use super::matrix::{DeviceMatrix, Piece, Planes, Product, Reads, Target};
use super::mlp::Mlp;
use super::norms::{Norm, NormTensors, Residual};
use super::turns::TurnedRows;
use crate::base::DType;
use crate::config::{EngineConfig, KvDtype, LoadProgress, LoadStage};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::gpu::memory::{Slice, Use};
use crate::gpu::upload::Uploader;
use crate::kernels::Form;
use crate::kernels::embed::{self, EmbedParams, Table};
use crate::kernels::matmul::Epilogue;
use crate::model::files::ModelFiles;
use crate::model::spec::TensorRole;
use crate::weights::pack::{Arrangement, FusedMatrix};
use crate::weights::tensors::MatrixRef;

/// What loading needs at hand.
pub(super) struct Loader<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) uploader: Uploader<'a>,
    pub(super) binding_limit: u64,
    /// The piece that is being packed, and the one before it, which is uploaded meanwhile.
    pub(super) pieces: [Piece; 2],
    /// Format that full-precision matrices are rounded to.
    quantize: Option<DType>,
    /// Whether products with quantised weights take int12 activations.
    int12: bool,
    params: Arena,
    vectors: Arena,
    weights: WeightBytes,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(LoadProgress),
}

/// Bytes of weights: all of them, and those that one decode step of a single sequence reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WeightBytes {
    pub(super) total: u64,
    pub(super) per_step: u64,
}

impl<'a> Loader<'a> {
    pub(super) fn new(
        gpu: &'a Gpu,
        files: &ModelFiles,
        binding_limit: u64,
        config: &EngineConfig,
        progress: &'a mut dyn FnMut(LoadProgress),
    ) -> Self {
        let quantize = config.quantize;
        let total = weight_bytes(files, quantize);
        Self {
            gpu,
            uploader: Uploader::new(gpu),
            binding_limit,
            pieces: Default::default(),
            quantize,
            int12: config.activations.int12(),
            params: Arena::new("dispatch parameters", Use::Uniform),
            vectors: Arena::new("norms and biases", Use::Storage),
            weights: WeightBytes::default(),
            done: 0,
            total,
            progress,
        }
    }

    /// Uploads what is packed and waits until all of it is on the device.
    ///
    /// # Errors
    /// The device was lost.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.pieces[1].upload(&mut self.uploader)?;
        self.uploader.flush()
    }

    /// Reports `bytes` more.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.done += bytes as u64;
        let done = self.done.min(self.total);
        (self.progress)(LoadProgress { stage: LoadStage::Uploading, done, total: self.total });
    }

    /// Takes note of a matrix: its bytes, and those that a decode step reads.
    pub(super) fn count(&mut self, bytes: u64, per_step: u64) {
        self.weights.total += bytes;
        self.weights.per_step += per_step;
    }

    /// Stores the parameters of a dispatch.
    pub(super) fn params(&mut self, bytes: &[u8]) -> Result<Slice> {
        self.params.push(self.gpu, &mut self.uploader, bytes)
    }

    /// Stores a small vector.
    pub(super) fn vector(&mut self, values: &[f32]) -> Result<Slice> {
        self.vectors.push(self.gpu, &mut self.uploader, bytemuck::cast_slice(values))
    }

    /// The type on the device of matrices that are `dtype` in their file.
    pub(super) fn loaded(&self, dtype: DType) -> DType {
        self.quantize.filter(|_| dtype.is_plain()).unwrap_or(dtype)
    }

    /// The form in which products with weights that are `dtype` in their file take activations.
    pub(super) fn form(&self, dtype: DType) -> Form {
        if self.int12 && self.loaded(dtype).has_whole_codes() { Form::Int12 } else { Form::F32 }
    }

    /// Loads one matrix of several parts.
    pub(super) fn matrix(&mut self, label: &str, parts: Vec<MatrixRef<'_>>, kind: Arrangement) -> Result<DeviceMatrix> {
        let fused = FusedMatrix::new(parts, kind).map_err(|error| error.context(label))?.quantized(self.quantize)?;
        DeviceMatrix::load(self, label, &fused, kind)
    }

    /// Loads a matrix that keeps its precision, and that of its activations, whatever the others are rounded to.
    pub(super) fn exact_matrix(&mut self, label: &str, parts: Vec<MatrixRef<'_>>) -> Result<DeviceMatrix> {
        let kind = Arrangement::Stacked;
        let fused = FusedMatrix::new(parts, kind).map_err(|error| error.context(label))?;
        Ok(DeviceMatrix { form: Form::F32, exact: true, ..DeviceMatrix::load(self, label, &fused, kind)? })
    }

    /// Loads a matrix for each expert, of the parts of each.
    pub(super) fn experts(
        &mut self,
        label: &str,
        experts: Vec<Vec<MatrixRef<'_>>>,
        kind: Arrangement,
    ) -> Result<DeviceMatrix> {
        let quantize = self.quantize;
        let fused = experts.into_iter().map(|parts| FusedMatrix::new(parts, kind)?.quantized(quantize));
        let fused = fused.collect::<Result<Vec<_>>>().map_err(|error| error.context(label))?;
        DeviceMatrix::load_experts(self, label, &fused, kind)
    }
}

/// A table whose vectors begin the residual stream: tokens, or learned positions.
pub(super) struct EmbedTable {
    table: Table,
    dtype: DType,
    /// Planes and parameters of each shard.
    shards: Vec<(Planes, Slice)>,
}

impl EmbedTable {
    fn new(loader: &mut Loader<'_>, table: Table, matrix: &DeviceMatrix, scale: f32) -> Result<Self> {
        let mut shards = Vec::with_capacity(matrix.shards.len());
        for shard in &matrix.shards {
            let params = EmbedParams {
                blocks: matrix.blocks as u32,
                first_entry: shard.outputs.start as u32,
                entry_count: shard.outputs.len() as u32,
                scale,
            };
            shards.push((shard.planes.clone(), loader.params(bytemuck::bytes_of(&params))?));
        }
        Ok(Self { table, dtype: matrix.dtype, shards })
    }

    /// Records the look-up of every row.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record(&self, step: &mut Recording<'_>) -> Result<()> {
        let b = step.buffers;
        let variant = embed::variant(self.dtype, self.table, &step.gpu.profile);
        let label = if self.table == Table::Tokens { "embed" } else { "positions" };
        for (planes, params) in &self.shards {
            let mut arguments = vec![("rows", &b.rows), ("x", &b.hidden), ("params", params)];
            arguments.extend(planes.iter().map(|(name, plane)| (*name, plane)));
            step.dispatch(label, &variant, &arguments, embed::grid(step.rows))?;
        }
        Ok(())
    }
}

/// One layer, ready to record.
pub(super) struct DeviceLayer {
    /// Around attention and MLP.
    pub(super) residuals: [Residual; 2],
    pub(super) attention: Attention,
    pub(super) mlp: Mlp,
}

/// One pass over wanted rows: as many as the logits buffer holds.
pub(super) struct HeadRound {
    pub(super) norm: Norm,
    pub(super) head: Product,
}

/// All weights of a model, and how they are used.
pub(super) struct DeviceModel {
    pub(super) turned: TurnedRows,
    /// Tokens, and positions where they are learned.
    pub(super) embed: Vec<EmbedTable>,
    pub(super) layers: Vec<DeviceLayer>,
    pub(super) rounds: Vec<HeadRound>,
    pub(super) weights: WeightBytes,
}

/// Sizes that parameters depend on.
pub(super) struct Shape {
    pub(super) max_model_len: usize,
    /// Rows of the largest step.
    pub(super) max_rows: usize,
    pub(super) kv: KvDtype,
    /// Rows of the logits buffer.
    pub(super) logit_rows: usize,
    /// Passes over wanted rows in the largest step.
    pub(super) rounds: usize,
}

impl DeviceModel {
    /// Loads everything.
    ///
    /// # Errors
    /// A broken file, too little memory, or a lost device.
    pub(super) fn load(loader: &mut Loader<'_>, files: &ModelFiles, shape: &Shape) -> Result<Self> {
        let (spec, tensors) = (&files.spec, &files.tensors);
        let turned = TurnedRows::load(loader, &spec.ropes, shape.max_rows, shape.max_model_len)?;
        let embedding = loader.matrix("embedding", vec![tensors.matrix(TensorRole::Embed)?], Arrangement::Stacked)?;
        loader.count(embedding.bytes(), if spec.tied_head { embedding.bytes() } else { 0 });
        let mut embed = vec![EmbedTable::new(loader, Table::Tokens, &embedding, spec.embed_scale)?];
        if spec.learned_positions {
            let positions = loader.exact_matrix("positions", vec![tensors.matrix(TensorRole::Positions)?])?;
            loader.count(positions.bytes(), 0);
            embed.push(EmbedTable::new(loader, Table::Positions, &positions, 1.0)?);
        }
        let own_head = match spec.tied_head {
            true => None,
            false => {
                let parts = vec![tensors.matrix(TensorRole::Head)?];
                Some(loader.matrix("output head", parts, Arrangement::Stacked)?)
            }
        };
        loader
            .count(own_head.as_ref().map_or(0, DeviceMatrix::bytes), own_head.as_ref().map_or(0, DeviceMatrix::bytes));

        let mut layers = Vec::with_capacity(spec.layers.len());
        for (index, residuals) in Residual::load_all(loader, files)?.into_iter().enumerate() {
            let [around_attention, around_mlp] = &residuals;
            let attention = Attention::load(loader, files, index, &turned, around_attention, shape)?;
            let mlp = Mlp::load(loader, files, index, around_mlp)?;
            layers.push(DeviceLayer { residuals, attention, mlp });
        }

        let head = own_head.as_ref().unwrap_or(&embedding);
        let norm =
            NormTensors { spec: spec.final_norm, weight: TensorRole::FinalNorm, bias: TensorRole::FinalNormBias };
        let target = Target {
            cap: spec.final_softcap,
            ..Target::rows(
                logits_stride(spec.vocab_size),
                if spec.final_softcap.is_some() { Epilogue::SoftCap } else { Epilogue::Store },
            )
        };
        let mut rounds = Vec::with_capacity(shape.rounds);
        for round in 0..shape.rounds {
            let first = round * shape.logit_rows;
            let target = Target { reads: Reads::Samples(first, shape.logit_rows), ..target.clone() };
            rounds.push(HeadRound {
                norm: Norm::load(loader, files, norm, first)?,
                head: Product::new(loader, "head", head, target)?,
            });
        }
        loader.flush()?;
        Ok(Self { turned, embed, layers, rounds, weights: loader.weights })
    }
}

/// Elements from one row of logits to the next.
pub(super) fn logits_stride(vocab_size: usize) -> usize {
    vocab_size.next_multiple_of(32)
}
