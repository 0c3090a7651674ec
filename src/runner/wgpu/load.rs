//! Puts a model on the device: weights repacked and uploaded in bounded pieces, and the parameters of every dispatch.

use super::arena::Arena;
use super::matrix::{DeviceMatrix, Product, Target};
use crate::config::{KvDtype, LoadProgress, LoadStage};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::gpu::memory::{Slice, Use};
use crate::gpu::upload::Uploader;
use crate::kernels::act_mul::ActMulParams;
use crate::kernels::embed::EmbedParams;
use crate::kernels::matmul::Epilogue;
use crate::kernels::norm::NormParams;
use crate::kernels::{attention, rope_kv};
use crate::model::files::ModelFiles;
use crate::model::rope::cos_sin_table;
use crate::model::spec::{LayerSpec, NormSpec, TensorRole};
use crate::weights::pack::{Arrangement, FusedMatrix};
use crate::weights::tensors::MatrixRef;

/// What loading needs at hand.
pub(super) struct Loader<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) uploader: Uploader<'a>,
    pub(super) binding_limit: u64,
    pub(super) scratch: [Vec<u32>; 3],
    params: Arena,
    vectors: Arena,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(LoadProgress),
}

impl<'a> Loader<'a> {
    pub(super) fn new(
        gpu: &'a Gpu,
        files: &ModelFiles,
        binding_limit: u64,
        progress: &'a mut dyn FnMut(LoadProgress),
    ) -> Self {
        let elements = |shape: &[usize]| shape.iter().product::<usize>();
        let total = (files.tensors.infos())
            .map(|info| elements(&info.shape) / info.dtype.block_elements() * info.dtype.block_bytes())
            .sum::<usize>() as u64;
        Self {
            gpu,
            uploader: Uploader::new(gpu),
            binding_limit,
            scratch: Default::default(),
            params: Arena::new("dispatch parameters", Use::Uniform),
            vectors: Arena::new("norms and biases", Use::Storage),
            done: 0,
            total,
            progress,
        }
    }

    /// Reports `bytes` more.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.done += bytes as u64;
        let done = self.done.min(self.total);
        (self.progress)(LoadProgress { stage: LoadStage::Uploading, done, total: self.total });
    }

    /// Stores the parameters of a dispatch.
    pub(super) fn params(&mut self, bytes: &[u8]) -> Result<Slice> {
        self.params.push(self.gpu, &mut self.uploader, bytes)
    }

    /// Stores a small vector.
    fn vector(&mut self, values: &[f32]) -> Result<Slice> {
        self.vectors.push(self.gpu, &mut self.uploader, bytemuck::cast_slice(values))
    }

    fn matrix(&mut self, label: &str, parts: Vec<MatrixRef<'_>>, kind: Arrangement) -> Result<DeviceMatrix> {
        let fused = FusedMatrix::new(parts, kind).map_err(|error| error.context(label))?;
        DeviceMatrix::load(self, label, &fused, kind)
    }

    fn norm(&mut self, files: &ModelFiles, role: TensorRole, spec: NormSpec, first_sample: usize) -> Result<Norm> {
        let weight = files.tensors.vector(role)?;
        let width = (weight.len() / 4) as u32;
        let params = NormParams { width, eps: spec.eps, first_sample: first_sample as u32, reserved: 0 };
        Ok(Norm { weight: self.vector(&weight)?, params: self.params(bytemuck::bytes_of(&params))? })
    }
}

/// A norm's weight and parameters.
pub(super) struct Norm {
    pub(super) weight: Slice,
    pub(super) params: Slice,
}

/// One shard of the embedding.
pub(super) struct EmbedShard {
    pub(super) planes: Vec<(&'static str, Slice)>,
    pub(super) params: Slice,
}

/// The MLP's first half: one fused product, or two and their combination where the formats differ.
pub(super) enum GateUp {
    Fused(Product),
    Apart { gate: Product, up: Product, act_mul: Slice },
}

/// One layer, ready to record.
pub(super) struct DeviceLayer {
    pub(super) attn_norm: Norm,
    pub(super) qkv: Vec<Product>,
    pub(super) head_norms: Option<Slice>,
    pub(super) rope: rope_kv::Spec,
    pub(super) cos_sin: Slice,
    pub(super) attention: attention::Spec,
    pub(super) output: Product,
    pub(super) mlp_norm: Norm,
    pub(super) gate_up: GateUp,
    pub(super) down: Product,
    pub(super) intermediate_size: usize,
}

/// One pass over wanted rows: as many as the logits buffer holds.
pub(super) struct HeadRound {
    pub(super) norm: Norm,
    pub(super) head: Product,
}

/// All weights of a model, and how they are used.
pub(super) struct DeviceModel {
    pub(super) embed_dtype: crate::base::DType,
    pub(super) embed: Vec<EmbedShard>,
    pub(super) layers: Vec<DeviceLayer>,
    pub(super) rounds: Vec<HeadRound>,
    /// Bytes of all weights.
    pub(super) weight_bytes: u64,
    /// Bytes that one decode step reads: everything but the embedding of a model with a head of its own.
    pub(super) bytes_per_step: u64,
}

/// Sizes that parameters depend on.
pub(super) struct Shape {
    pub(super) max_model_len: usize,
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
        let spec = &files.spec;
        let mut tables = Vec::new();
        for rope in &spec.ropes {
            tables.push(loader.vector(bytemuck::cast_slice(&cos_sin_table(rope, shape.max_model_len)))?);
        }
        let embedding =
            loader.matrix("embedding", vec![files.tensors.matrix(TensorRole::Embed)?], Arrangement::Stacked)?;
        let own_head = match spec.tied_head {
            true => None,
            false => {
                let parts = vec![files.tensors.matrix(TensorRole::Head)?];
                Some(loader.matrix("output head", parts, Arrangement::Stacked)?)
            }
        };
        let mut embed = Vec::new();
        for shard in &embedding.shards {
            let params = EmbedParams {
                blocks: embedding.blocks as u32,
                first_token: shard.outputs.start as u32,
                token_count: shard.outputs.len() as u32,
                reserved: 0,
            };
            let params = loader.params(bytemuck::bytes_of(&params))?;
            embed.push(EmbedShard { planes: shard.planes.clone(), params });
        }
        let mut matrix_bytes = 0;
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (index, layer) in spec.layers.iter().enumerate() {
            let table = layer.attn.rope.ok_or_else(|| crate::error::Error::load("layers without rotation"))?;
            let cos_sin = tables[table].clone();
            let rope = rope_kv::Spec::new(&layer.attn, &spec.ropes[table], shape.kv);
            layers.push(load_layer(loader, files, index, layer, cos_sin, rope, shape.kv, &mut matrix_bytes)?);
        }
        let head = own_head.as_ref().unwrap_or(&embedding);
        let mut rounds = Vec::with_capacity(shape.rounds);
        for round in 0..shape.rounds {
            let first = round * shape.logit_rows;
            let norm = loader.norm(files, TensorRole::FinalNorm, spec.final_norm, first)?;
            let samples = Some((first, shape.logit_rows));
            let target = Target { offset: 0, stride: logits_stride(spec.vocab_size), samples };
            rounds.push(HeadRound { norm, head: Product::new(loader, "head", head, Epilogue::Store, None, target)? });
        }
        loader.uploader.flush()?;
        let bytes_per_step = matrix_bytes + head.bytes();
        let weight_bytes = matrix_bytes + embedding.bytes() + own_head.as_ref().map_or(0, DeviceMatrix::bytes);
        Ok(Self { embed_dtype: embedding.dtype, embed, layers, rounds, weight_bytes, bytes_per_step })
    }
}

/// Elements from one row of logits to the next.
pub(super) fn logits_stride(vocab_size: usize) -> usize {
    vocab_size.next_multiple_of(32)
}

#[allow(clippy::too_many_arguments)] // all of one layer
fn load_layer(
    loader: &mut Loader<'_>,
    files: &ModelFiles,
    index: usize,
    spec: &LayerSpec,
    cos_sin: Slice,
    rope: rope_kv::Spec,
    kv: KvDtype,
    matrix_bytes: &mut u64,
) -> Result<DeviceLayer> {
    use TensorRole as R;
    let tensors = &files.tensors;
    let attn = &spec.attn;
    let label = |name: &str| format!("layer {index} {name}");
    let whole = |stride| Target { offset: 0, stride, samples: None };

    let bias = match attn.qkv_bias {
        true => {
            let mut bias = tensors.vector(R::QueryBias(index))?;
            bias.extend(tensors.vector(R::KeyBias(index))?);
            bias.extend(tensors.vector(R::ValueBias(index))?);
            Some(loader.vector(&bias)?)
        }
        false => None,
    };
    let epilogue = if bias.is_some() { Epilogue::Bias } else { Epilogue::Store };
    let width = attn.query_width() + 2 * attn.kv_width();
    let mut qkv = Vec::new();
    let mut offset = 0;
    let projections = [R::Query(index), R::Key(index), R::Value(index)];
    let projections = projections.into_iter().map(|role| tensors.matrix(role)).collect::<Result<Vec<_>>>()?;
    // Neighbours of one format become one product; files of mixed precision keep the value projection wider.
    for parts in projections.chunk_by(|left, right| left.dtype == right.dtype) {
        let matrix = loader.matrix(&label("qkv"), parts.to_vec(), Arrangement::Stacked)?;
        let target = Target { offset, stride: width, samples: None };
        qkv.push(Product::new(loader, "qkv", &matrix, epilogue, bias.clone(), target)?);
        offset += matrix.outputs;
        *matrix_bytes += matrix.bytes();
    }
    let head_norms = match attn.qk_norm {
        Some(_) => {
            let mut norms = tensors.vector(R::QueryNorm(index))?;
            norms.extend(tensors.vector(R::KeyNorm(index))?);
            Some(loader.vector(&norms)?)
        }
        None => None,
    };
    let output = loader.matrix(&label("output"), vec![tensors.matrix(R::Output(index))?], Arrangement::Stacked)?;
    let down = loader.matrix(&label("down"), vec![tensors.matrix(R::Down(index))?], Arrangement::Stacked)?;
    *matrix_bytes += output.bytes() + down.bytes();

    let intermediate = spec.mlp.intermediate_size;
    let (gate, up) = (tensors.matrix(R::Gate(index))?, tensors.matrix(R::Up(index))?);
    let gate_up = if gate.dtype == up.dtype {
        let matrix = loader.matrix(&label("gate and up"), vec![gate, up], Arrangement::GateUp)?;
        *matrix_bytes += matrix.bytes();
        GateUp::Fused(Product::new(loader, "gate_up", &matrix, Epilogue::SiluMul, None, whole(intermediate))?)
    } else {
        let gate = loader.matrix(&label("gate"), vec![gate], Arrangement::Stacked)?;
        let up = loader.matrix(&label("up"), vec![up], Arrangement::Stacked)?;
        *matrix_bytes += gate.bytes() + up.bytes();
        let params = ActMulParams { width: (intermediate / 4) as u32, reserved: [0; 3] };
        GateUp::Apart {
            gate: Product::new(loader, "gate", &gate, Epilogue::Store, None, whole(intermediate))?,
            up: Product::new(loader, "up", &up, Epilogue::Store, None, whole(intermediate))?,
            act_mul: loader.params(bytemuck::bytes_of(&params))?,
        }
    };
    let hidden = files.spec.hidden_size;
    Ok(DeviceLayer {
        attn_norm: loader.norm(files, R::AttnNorm(index), spec.attn_norm.unwrap_or(NormSpec::rms(0.0)), 0)?,
        qkv,
        head_norms,
        rope,
        cos_sin,
        attention: attention::Spec::new(attn, kv),
        output: Product::new(loader, "output", &output, Epilogue::Add, None, whole(hidden))?,
        mlp_norm: loader.norm(files, R::MlpNorm(index), spec.mlp_norm.unwrap_or(NormSpec::rms(0.0)), 0)?,
        gate_up,
        down: Product::new(loader, "down", &down, Epilogue::Add, None, whole(hidden))?,
        intermediate_size: intermediate,
    })
}
