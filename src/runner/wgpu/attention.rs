//! The attention of one layer on the device: projections, norms and rotation of heads, KV write, attention, output.

use super::forms::{Forms, Quantizer, Wanted};
use super::forward::Recording;
use super::load::{Loader, Shape};
use super::matrix::{Extent, Product, Target};
use super::norms::Residual;
use super::turns::TurnedRows;
use crate::error::Result;
use crate::gpu::memory::Slice;
use crate::kernels::Form;
use crate::kernels::attention::{self, Mode};
use crate::kernels::heads::Heads;
use crate::kernels::matmul::Epilogue;
use crate::kernels::qk_norm::{self, QkNormParams};
use crate::kernels::{attn_combine, rope_kv};
use crate::model::files::ModelFiles;
use crate::model::spec::{AttnSpec, TensorRole};
use crate::weights::pack::Arrangement;

/// Ready to record.
pub(super) struct Attention {
    projections: Projections,
    /// Weights and parameters of the norms over all query heads and over all key heads.
    whole_norm: Option<(Slice, Slice)>,
    pub(super) spec: attention::Spec,
    output: Product,
    /// For heads whose blocks the kernels cannot leave as int12.
    quantizer: Quantizer,
}

/// How heads come from the rows of the layer.
enum Projections {
    /// In one product that rotates them and writes keys and values to the cache.
    Fused(Product),
    /// In products, and a dispatch that does the rest.
    Apart {
        qkv: Vec<Product>,
        rope: rope_kv::Spec,
        /// The rotary table, where heads rotate.
        cos_sin: Option<Slice>,
        /// Weights of the norms of single heads.
        head_norms: Option<Slice>,
    },
}

impl Attention {
    /// Loads layer `index`; `turned` has the tables of the model's ropes.
    ///
    /// # Errors
    /// A broken file, too little memory, or a lost device.
    pub(super) fn load(
        loader: &mut Loader<'_>,
        files: &ModelFiles,
        index: usize,
        turned: &TurnedRows,
        residual: &Residual,
        shape: &Shape,
    ) -> Result<Self> {
        use TensorRole as R;
        let tensors = &files.tensors;
        let attn = &files.spec.layers[index].attn;
        let output_bias = match attn.output_bias {
            true => Some(loader.vector(&tensors.vector(R::OutputBias(index))?)?),
            false => None,
        };
        let parts = vec![tensors.matrix(R::Output(index))?];
        let output = loader.matrix(&format!("layer {index} output"), parts, Arrangement::Stacked)?;
        loader.count(output.bytes(), output.bytes());
        let target = residual.output(files.spec.hidden_size, output_bias);

        let (mut whole_norm, mut head_norms) = (None, None);
        if let Some(qk_norm) = attn.qk_norm {
            let mut weights = tensors.vector(R::QueryNorm(index))?;
            weights.extend(tensors.vector(R::KeyNorm(index))?);
            let weights = loader.vector(&weights)?;
            if qk_norm.whole_row {
                let quarter = |width: usize| (width / 4) as u32;
                let params = QkNormParams {
                    query_width: quarter(attn.query_width()),
                    key_width: quarter(attn.kv_width()),
                    stride: quarter(attn.query_width() + 2 * attn.kv_width()),
                    eps: qk_norm.norm.eps,
                };
                whole_norm = Some((weights, loader.params(bytemuck::bytes_of(&params))?));
            } else {
                head_norms = Some(weights);
            }
        }
        let mut spec = attention::Spec::new(attn, shape.kv);
        // A window that no sequence outgrows hides nothing.
        spec.window = spec.window.filter(|window| *window < shape.max_model_len);
        let rope = rope_kv::Spec::new(attn, attn.rope.map(|rope| &files.spec.ropes[rope]), shape.kv);
        let plain = whole_norm.is_none() && !attn.qkv_bias && one_format(files, index)?;
        let dtype = loader.loaded(tensors.matrix(R::Query(index))?.dtype);
        let heads = Heads::new(&rope, dtype).filter(|_| plain);
        let turns_at = turned.start(attn.rope, loader.binding_limit);
        let projections = match heads.zip(turns_at) {
            Some((heads, turns_at)) => {
                Projections::Fused(load_heads(loader, files, index, heads, turns_at, residual.normed())?)
            }
            None => Projections::Apart {
                qkv: load_qkv(loader, files, index, attn, residual.normed())?,
                rope,
                cos_sin: attn.rope.map(|rope| turned.tables[rope].clone()),
                head_norms,
            },
        };
        Ok(Self {
            projections,
            whole_norm,
            spec,
            output: Product::new(loader, "output", &output, target)?,
            quantizer: Quantizer::new(loader, attn.query_width(), 1)?,
        })
    }

    /// What its projections read.
    pub(super) fn wants(&self) -> Wanted {
        match &self.projections {
            Projections::Fused(product) => Wanted::One(product.form()),
            Projections::Apart { qkv, .. } => Wanted::of(qkv.iter().map(Product::form)),
        }
    }

    /// Records the sublayer, with the layer's keys and values; `next` is what the MLP wants.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record(
        &self,
        step: &mut Recording<'_>,
        residual: &Residual,
        keys: &Slice,
        values: &Slice,
        next: Wanted,
    ) -> Result<()> {
        let (b, rows) = (step.buffers, step.rows);
        let x = residual.begin(step, self.wants())?;
        match &self.projections {
            Projections::Fused(product) => product.record_heads(step, x, keys, values, Extent::rows(rows))?,
            Projections::Apart { qkv, rope, cos_sin, head_norms } => {
                for product in qkv {
                    product.record(step, x, &b.qkv, Extent::rows(rows))?;
                }
                if let Some((weight, params)) = &self.whole_norm {
                    let arguments = [("inputs", &b.inputs), ("weight", weight), ("qkv", &b.qkv), ("params", params)];
                    step.dispatch("qk_norm", &qk_norm::variant(&step.gpu.profile), &arguments, qk_norm::grid(rows))?;
                }
                let mut arguments = vec![("rows", &b.rows), ("qkv", &b.qkv), ("keys", keys), ("values", values)];
                arguments.extend(cos_sin.iter().map(|table| ("cos_sin", table)));
                arguments.extend(head_norms.iter().map(|norms| ("head_norms", norms)));
                let variant = rope_kv::variant(rope, &step.gpu.profile);
                step.dispatch("rope_kv", &variant, &arguments, rope_kv::grid(rope, rows))?;
            }
        }

        let bucket = step.bucket;
        if bucket.tiles > 0 {
            self.record_heads(step, Mode::Prefill, keys, values, [bucket.tiles, 1])?;
        }
        if bucket.decode > 0 {
            let chunks = self.spec.chunks(bucket.chunks).next_power_of_two();
            match step.sizes.splits(&self.spec, bucket.decode, chunks) {
                true => {
                    self.record_heads(step, Mode::Split, keys, values, [bucket.decode, chunks])?;
                    self.record_combine(step, chunks)?;
                }
                false => self.record_heads(step, Mode::Decode, keys, values, [bucket.decode, 1])?,
            }
        }
        let attended = match self.output.form() == self.left() {
            true => Forms::only(&b.attended),
            false => Forms::only(self.quantizer.record(step, &b.attended)?),
        };
        self.output.record(step, attended, residual.target(step), Extent::rows(rows))?;
        residual.end(step, next)
    }

    /// The form that the kernels leave heads in.
    fn left(&self) -> Form {
        self.spec.form(self.output.form())
    }

    fn record_heads(
        &self,
        step: &mut Recording<'_>,
        mode: Mode,
        keys: &Slice,
        values: &Slice,
        [tiles, chunks]: [usize; 2],
    ) -> Result<()> {
        let b = step.buffers;
        let arguments = [
            ("inputs", &b.inputs),
            ("rows", &b.rows),
            ("tables", &b.tables),
            ("qkv", &b.qkv),
            ("keys", keys),
            ("values", values),
            ("result", if mode == Mode::Split { &b.partials } else { &b.attended }),
        ];
        let label = if mode == Mode::Prefill { "attn_prefill" } else { "attn_decode" };
        let form = if mode == Mode::Split { Form::F32 } else { self.left() };
        let variant = attention::variant(&self.spec, mode, form, &step.gpu.profile);
        step.dispatch(label, &variant, &arguments, attention::grid(&self.spec, tiles, chunks))
    }

    fn record_combine(&self, step: &mut Recording<'_>, chunks: usize) -> Result<()> {
        let b = step.buffers;
        let arguments = [
            ("inputs", &b.inputs),
            ("rows", &b.rows),
            ("partials", &b.partials),
            ("result", &b.attended),
            ("params", &step.combine[chunks.ilog2() as usize]),
        ];
        let variant = attn_combine::variant(&self.spec, self.left(), &step.gpu.profile);
        step.dispatch("attn_combine", &variant, &arguments, attn_combine::grid(&self.spec, step.bucket.decode))
    }
}

/// Whether the three projections of layer `index` have one format.
fn one_format(files: &ModelFiles, index: usize) -> Result<bool> {
    use TensorRole as R;
    let dtype = |role| files.tensors.matrix(role).map(|matrix| matrix.dtype);
    let query = dtype(R::Query(index))?;
    Ok(query == dtype(R::Key(index))? && query == dtype(R::Value(index))?)
}

/// Query, key and value projections as one product that leaves heads ready for attention.
fn load_heads(
    loader: &mut Loader<'_>,
    files: &ModelFiles,
    index: usize,
    heads: Heads,
    turns_at: u32,
    normed: Option<f32>,
) -> Result<Product> {
    use TensorRole as R;
    let roles = [R::Query(index), R::Key(index), R::Value(index)];
    let parts = roles.into_iter().map(|role| files.tensors.matrix(role)).collect::<Result<Vec<_>>>()?;
    let Heads { head_dim, rotary_dim, .. } = heads;
    let arrangement = Arrangement::Heads { rotated: heads.rotated(), head_dim, rotary_dim };
    let matrix = loader.matrix(&format!("layer {index} qkv"), parts, arrangement)?;
    loader.count(matrix.bytes(), matrix.bytes());
    let target = Target { normed, turns_at, ..Target::rows(matrix.outputs, Epilogue::Heads(heads)) };
    Product::new(loader, "qkv", &matrix, target)
}

/// Query, key and value projections in as few products as their formats allow; their input rows may lack the factor of a norm
/// with epsilon `normed`.
fn load_qkv(
    loader: &mut Loader<'_>,
    files: &ModelFiles,
    index: usize,
    attn: &AttnSpec,
    normed: Option<f32>,
) -> Result<Vec<Product>> {
    use TensorRole as R;
    let tensors = &files.tensors;
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
    let projections = [R::Query(index), R::Key(index), R::Value(index)];
    let projections = projections.into_iter().map(|role| tensors.matrix(role)).collect::<Result<Vec<_>>>()?;
    let mut products = Vec::new();
    let mut offset = 0;
    // Neighbours of one format become one product; files of mixed precision keep the value projection wider.
    for parts in projections.chunk_by(|left, right| left.dtype == right.dtype) {
        let matrix = loader.matrix(&format!("layer {index} qkv"), parts.to_vec(), Arrangement::Stacked)?;
        loader.count(matrix.bytes(), matrix.bytes());
        let width = attn.query_width() + 2 * attn.kv_width();
        let target = Target { offset, bias: bias.clone(), normed, ..Target::rows(width, epilogue) };
        products.push(Product::new(loader, "qkv", &matrix, target)?);
        offset += matrix.outputs;
    }
    Ok(products)
}
