//! The weights of one decoder layer in f32, and its two sublayers in f64: what [`model`](super::model) walks over.

use super::act_mul::{activate, gated};
use super::kv::KvMemory;
use super::matmul::matmul;
use super::model::Row;
use super::norm::{layer_norm, rms_norm};
use super::rope_kv::{Rotated, rope_kv};
use super::{attention, experts};
use crate::error::Result;
use crate::model::spec::{Activation, LayerSpec, MlpKind, NormKind, NormSpec, TensorRole};
use crate::weights::tensors::{MatrixRef, ModelTensors};

/// A matrix, decoded.
pub struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    /// The matrix with this role.
    ///
    /// # Errors
    /// The model has none.
    pub fn load(tensors: &ModelTensors, role: TensorRole) -> Result<Self> {
        Ok(Self::decoded(&tensors.matrix(role)?))
    }

    fn decoded(matrix: &MatrixRef<'_>) -> Self {
        let (rows, columns) = (matrix.rows, matrix.columns);
        let mut values = vec![0.0; rows * columns];
        for (row, out) in values.chunks_mut(columns).enumerate() {
            matrix.decode_row(row, out);
        }
        Self { rows, columns, values }
    }

    /// Writes one row.
    pub fn decode(&self, row: usize, out: &mut [f32]) {
        out.copy_from_slice(self.row(row));
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..][..self.columns]
    }

    /// The product with each row of `x`.
    pub fn times(&self, x: &[f64]) -> Vec<f64> {
        matmul(&|row, out| self.decode(row, out), self.rows, self.columns, x).0
    }
}

/// A norm with its weights.
pub struct Norm {
    spec: NormSpec,
    weight: Vec<f32>,
    /// Empty unless it is a layer norm.
    bias: Vec<f32>,
}

impl Norm {
    /// The norm whose weight and bias have these roles.
    ///
    /// # Errors
    /// The model lacks one of them.
    pub fn load(tensors: &ModelTensors, spec: NormSpec, weight: TensorRole, bias: Option<TensorRole>) -> Result<Self> {
        let bias = match (spec.kind, bias) {
            (NormKind::Layer, Some(role)) => tensors.vector(role)?,
            _ => Vec::new(),
        };
        Ok(Self { spec, weight: tensors.vector(weight)?, bias })
    }

    /// Each row of `rows`, normed.
    pub fn apply(&self, rows: &[f64]) -> Vec<f64> {
        let norm = |row: &[f64]| match self.spec.kind {
            NormKind::Rms => rms_norm(row, &self.weight, self.spec.eps),
            NormKind::Layer => layer_norm(row, &self.weight, &self.bias, self.spec.eps),
        };
        rows.chunks(self.weight.len()).flat_map(norm).collect()
    }
}

/// A projection and its bias, which is empty if there is none.
struct Projection {
    matrix: Matrix,
    bias: Vec<f32>,
}

impl Projection {
    fn load(tensors: &ModelTensors, role: TensorRole, bias: Option<TensorRole>) -> Result<Self> {
        let bias = bias.map(|role| tensors.vector(role)).transpose()?.unwrap_or_default();
        Ok(Self { matrix: Matrix::load(tensors, role)?, bias })
    }

    fn times(&self, x: &[f64]) -> Vec<f64> {
        let mut y = self.matrix.times(x);
        for row in y.chunks_mut(self.matrix.rows) {
            for (value, &bias) in row.iter_mut().zip(&self.bias) {
                *value += f64::from(bias);
            }
        }
        y
    }
}

enum Mlp {
    Gated([Matrix; 3]),
    Plain { up: Projection, down: Projection },
    Experts { router: Matrix, experts: Vec<[Matrix; 3]>, chosen: usize, normalize: bool },
}

/// One decoder layer.
pub struct Layer {
    spec: LayerSpec,
    attn_norm: Option<Norm>,
    /// Query, key and value.
    projections: [Projection; 3],
    /// Empty without `qk_norm`.
    query_norm: Vec<f32>,
    key_norm: Vec<f32>,
    output: Projection,
    mlp_norm: Option<Norm>,
    mlp: Mlp,
    /// Norm of what the attention gives.
    pub attn_post_norm: Option<Norm>,
    /// Norm of what the MLP gives.
    pub mlp_post_norm: Option<Norm>,
}

impl Layer {
    /// Decodes the weights of layer `n`.
    ///
    /// # Errors
    /// A tensor is missing or cannot be read.
    pub fn load(spec: &LayerSpec, tensors: &ModelTensors, n: usize) -> Result<Self> {
        use TensorRole as R;
        let attn = &spec.attn;
        let norm =
            |norm: Option<NormSpec>, weight, bias| norm.map(|norm| Norm::load(tensors, norm, weight, bias)).transpose();
        let projection = |role, bias, wanted: bool| Projection::load(tensors, role, wanted.then_some(bias));
        let vector = |role| if attn.qk_norm.is_some() { tensors.vector(role) } else { Ok(Vec::new()) };
        let matrices =
            |role| Ok::<_, crate::error::Error>(tensors.parts(role)?.into_iter().map(|m| Matrix::decoded(&m)));
        let mlp = match spec.mlp.kind {
            MlpKind::Plain => Mlp::Plain {
                up: projection(R::Up(n), R::UpBias(n), true)?,
                down: projection(R::Down(n), R::DownBias(n), true)?,
            },
            MlpKind::Gated => Mlp::Gated([
                Matrix::load(tensors, R::Gate(n))?,
                Matrix::load(tensors, R::Up(n))?,
                Matrix::load(tensors, R::Down(n))?,
            ]),
            MlpKind::Experts { chosen, normalize, .. } => {
                let parts = matrices(R::Gate(n))?.zip(matrices(R::Up(n))?).zip(matrices(R::Down(n))?);
                let experts = parts.map(|((gate, up), down)| [gate, up, down]).collect();
                Mlp::Experts { router: Matrix::load(tensors, R::Router(n))?, experts, chosen, normalize }
            }
        };
        Ok(Self {
            attn_norm: norm(spec.attn_norm, R::AttnNorm(n), Some(R::AttnNormBias(n)))?,
            projections: [
                projection(R::Query(n), R::QueryBias(n), attn.qkv_bias)?,
                projection(R::Key(n), R::KeyBias(n), attn.qkv_bias)?,
                projection(R::Value(n), R::ValueBias(n), attn.qkv_bias)?,
            ],
            query_norm: vector(R::QueryNorm(n))?,
            key_norm: vector(R::KeyNorm(n))?,
            output: projection(R::Output(n), R::OutputBias(n), attn.output_bias)?,
            mlp_norm: norm(spec.mlp_norm, R::MlpNorm(n), Some(R::MlpNormBias(n)))?,
            mlp,
            attn_post_norm: norm(spec.attn_post_norm, R::AttnPostNorm(n), None)?,
            mlp_post_norm: norm(spec.mlp_post_norm, R::MlpPostNorm(n), None)?,
            spec: spec.clone(),
        })
    }

    /// Attention of `rows`, whose residual stream is `hidden`, up to and with the output projection. `cos_sin(position)` is
    /// the row of the rotary table, empty if this layer does not rotate; `index` is the layer's place in `memory`.
    pub fn attention<'t>(
        &self,
        index: usize,
        hidden: &[f64],
        rows: &[Row],
        cos_sin: &dyn Fn(usize) -> &'t [[f32; 2]],
        memory: &mut dyn KvMemory,
    ) -> Vec<f64> {
        let attn = &self.spec.attn;
        let x = normed(self.attn_norm.as_ref(), hidden);
        let projected: Vec<Vec<f64>> = self.projections.iter().map(|projection| projection.times(&x)).collect();
        let mut queries = Vec::with_capacity(rows.len());
        for (number, row) in rows.iter().enumerate() {
            let of_row = |y: &Vec<f64>| {
                let width = y.len() / rows.len();
                y[number * width..][..width].to_vec()
            };
            let fused: Vec<f64> = projected.iter().flat_map(of_row).collect();
            let Rotated { query, key, value } =
                rope_kv(&fused, attn, &self.query_norm, &self.key_norm, cos_sin(row.position));
            memory.store(index, row, &key, &value);
            queries.push(query);
        }

        let memory: &dyn KvMemory = memory;
        let mut attended = Vec::with_capacity(rows.len() * attn.query_width());
        for (query, row) in queries.iter().zip(rows) {
            let key = |position| memory.key(index, row, position);
            let value = |position| memory.value(index, row, position);
            attended.extend(attention::attend(query, &key, &value, attn, row.position + 1));
        }
        self.output.times(&attended)
    }

    /// The MLP of rows whose residual stream is `hidden`.
    pub fn mlp(&self, hidden: &[f64]) -> Vec<f64> {
        let x = normed(self.mlp_norm.as_ref(), hidden);
        let activation = self.spec.mlp.activation;
        match &self.mlp {
            Mlp::Gated(matrices) => gated_mlp(matrices, activation, &x),
            Mlp::Plain { up, down } => {
                let inner: Vec<f64> = up.times(&x).into_iter().map(|x| activate(activation, x)).collect();
                down.times(&inner)
            }
            Mlp::Experts { router, experts, chosen, normalize } => {
                let of_row = |row: &[f64]| {
                    let route = experts::route(&router.times(row), *chosen, *normalize);
                    let outputs: Vec<f64> =
                        route.iter().flat_map(|&(expert, _)| gated_mlp(&experts[expert], activation, row)).collect();
                    experts::combine(&route, &outputs, row.len())
                };
                x.chunks(router.columns).flat_map(of_row).collect()
            }
        }
    }
}

fn gated_mlp([gate, up, down]: &[Matrix; 3], activation: Activation, x: &[f64]) -> Vec<f64> {
    down.times(&gated(activation, &gate.times(x), &up.times(x)))
}

fn normed(norm: Option<&Norm>, hidden: &[f64]) -> Vec<f64> {
    norm.map_or_else(|| hidden.to_vec(), |norm| norm.apply(hidden))
}
