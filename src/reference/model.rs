//! A whole model on the CPU: the weights of its files, decoded once, and a walk over its spec that calls the twins.

use super::kv::{FlatKv, KvMemory};
use super::matmul::matmul;
use super::norm::rms_norm;
use super::rope_kv::{Rotated, rope_kv};
use super::{act_mul, attention, embed};
use crate::base::TokenId;
use crate::error::{Error, Result};
use crate::model::files::ModelFiles;
use crate::model::rope::cos_sin_table;
use crate::model::spec::{ModelSpec, TensorRole};
use crate::weights::tensors::ModelTensors;

/// One token to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its id.
    pub token: TokenId,
    /// Its position in the sequence.
    pub position: usize,
    /// The slot whose block table holds the sequence; unused by [`FlatKv`].
    pub slot: usize,
}

/// A point of the forward pass at which [`ReferenceModel::forward`] shows its rows, `[rows][hidden_size]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tap {
    /// Input of the first layer.
    Embed,
    /// Output of a layer's attention, after the output projection, before it is added.
    Attention(usize),
    /// Output of a layer's MLP, before it is added.
    Mlp(usize),
    /// Residual stream after a layer.
    Layer(usize),
    /// After the last norm.
    FinalNorm,
}

/// Everything that can be compared with a golden trace.
#[derive(Debug)]
pub struct Trace {
    /// Rows at each tap, in the order of computation.
    pub taps: Vec<(Tap, Vec<f64>)>,
    /// Keys of each layer, `[tokens][kv_heads][head_dim]`, after norm and rotation.
    pub keys: Vec<Vec<f64>>,
    /// Values of each layer.
    pub values: Vec<Vec<f64>>,
    /// Logits of each position.
    pub logits: Vec<Vec<f64>>,
}

impl Trace {
    /// The rows at `tap`, if the model has it.
    pub fn at(&self, tap: Tap) -> Option<&[f64]> {
        self.taps.iter().find(|(at, _)| *at == tap).map(|(_, rows)| rows.as_slice())
    }
}

struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn load(tensors: &ModelTensors, role: TensorRole) -> Result<Self> {
        let matrix = tensors.matrix(role)?;
        let (rows, columns) = (matrix.rows, matrix.columns);
        let mut values = vec![0.0; rows * columns];
        for (row, out) in values.chunks_mut(columns).enumerate() {
            matrix.decode_row(row, out);
        }
        Ok(Self { rows, columns, values })
    }

    fn decode(&self, row: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.values[row * self.columns..][..self.columns]);
    }

    fn times(&self, x: &[f64]) -> Vec<f64> {
        matmul(&|row, out| self.decode(row, out), self.rows, self.columns, x).0
    }
}

struct Layer {
    attn_norm: Vec<f32>,
    /// Query, key and value.
    projections: [Matrix; 3],
    /// Empty without `qkv_bias`.
    biases: [Vec<f32>; 3],
    /// Empty without `qk_norm`.
    query_norm: Vec<f32>,
    key_norm: Vec<f32>,
    output: Matrix,
    mlp_norm: Vec<f32>,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

/// Weights in f32, arithmetic in f64.
pub struct ReferenceModel {
    /// What the model is made of.
    pub spec: ModelSpec,
    embed: Matrix,
    /// `None` if the embedding is the head.
    head: Option<Matrix>,
    final_norm: Vec<f32>,
    layers: Vec<Layer>,
    /// Cosines and sines, `[positions][rotary_dim / 2]` for each of the spec's ropes.
    ropes: Vec<Vec<[f32; 2]>>,
    positions: usize,
}

impl ReferenceModel {
    /// Decodes all weights and prepares rotary tables for `positions` positions.
    ///
    /// # Errors
    /// A tensor is missing or cannot be read.
    pub fn load(files: &ModelFiles, positions: usize) -> Result<Self> {
        let (spec, tensors) = (files.spec.clone(), &files.tensors);
        let layers = (0..spec.layers.len()).map(|index| Layer::load(&spec, tensors, index)).collect::<Result<_>>()?;
        Ok(Self {
            embed: Matrix::load(tensors, TensorRole::Embed)?,
            head: if spec.tied_head { None } else { Some(Matrix::load(tensors, TensorRole::Head)?) },
            final_norm: tensors.vector(TensorRole::FinalNorm)?,
            layers,
            ropes: spec.ropes.iter().map(|rope| cos_sin_table(rope, positions)).collect(),
            positions,
            spec,
        })
    }

    /// Computes `rows` and returns what the output head reads, `[rows][hidden_size]`. Every key and value is stored
    /// before any row attends, so rows of one sequence may come together in any order.
    pub fn forward(&self, rows: &[Row], memory: &mut dyn KvMemory, tap: &mut dyn FnMut(Tap, &[f64])) -> Vec<f64> {
        let width = self.spec.hidden_size;
        let mut hidden = Vec::with_capacity(rows.len() * width);
        for row in rows {
            hidden.extend(embed::embed(&|row, out| self.embed.decode(row, out), width, row.token));
        }
        tap(Tap::Embed, &hidden);
        for index in 0..self.layers.len() {
            let attention = self.attention(index, &hidden, rows, memory);
            tap(Tap::Attention(index), &attention);
            add(&mut hidden, &attention);
            let mlp = self.mlp(index, &hidden);
            tap(Tap::Mlp(index), &mlp);
            add(&mut hidden, &mlp);
            tap(Tap::Layer(index), &hidden);
        }
        let normed = norm_rows(&hidden, &self.final_norm, self.spec.final_norm.eps);
        tap(Tap::FinalNorm, &normed);
        normed
    }

    /// Logits of one row of what [`forward`](Self::forward) returned.
    pub fn logits(&self, normed: &[f64]) -> Vec<f64> {
        self.head.as_ref().unwrap_or(&self.embed).times(normed)
    }

    /// Computes `tokens` from position 0 in one piece, without paging, and keeps everything.
    ///
    /// # Errors
    /// A token is outside the vocabulary, or there are more tokens than positions.
    pub fn trace(&self, tokens: &[TokenId]) -> Result<Trace> {
        if tokens.len() > self.positions {
            let (count, positions) = (tokens.len(), self.positions);
            return Err(Error::config(format!("{count} tokens exceed the {positions} positions of this reference")));
        }
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.spec.vocab_size) {
            return Err(Error::config(format!("token {token} is outside the vocabulary of {}", self.spec.vocab_size)));
        }
        let rows: Vec<Row> =
            tokens.iter().enumerate().map(|(position, &token)| Row { token, position, slot: 0 }).collect();
        let mut memory = FlatKv::new(&self.spec);
        let mut taps = Vec::new();
        let normed = self.forward(&rows, &mut memory, &mut |tap, rows| taps.push((tap, rows.to_vec())));
        let logits = normed.chunks(self.spec.hidden_size).map(|row| self.logits(row)).collect();
        Ok(Trace { taps, keys: memory.keys, values: memory.values, logits })
    }

    fn attention(&self, index: usize, hidden: &[f64], rows: &[Row], memory: &mut dyn KvMemory) -> Vec<f64> {
        let (layer, spec) = (&self.layers[index], &self.spec.layers[index]);
        let attn = &spec.attn;
        let x = norm_rows(hidden, &layer.attn_norm, spec.attn_norm.map_or(0.0, |norm| norm.eps));
        let projected: Vec<Vec<f64>> = layer.projections.iter().map(|matrix| matrix.times(&x)).collect();

        let table = attn.rope.unwrap_or(0);
        let rope = self.spec.ropes[table].rotary_dim / 2;
        let mut queries = Vec::with_capacity(rows.len());
        for (number, row) in rows.iter().enumerate() {
            let mut fused = Vec::new();
            for ((matrix, bias), y) in layer.projections.iter().zip(&layer.biases).zip(&projected) {
                let start = fused.len();
                fused.extend(&y[number * matrix.rows..][..matrix.rows]);
                for (value, &bias) in fused[start..].iter_mut().zip(bias) {
                    *value += f64::from(bias);
                }
            }
            let cos_sin = &self.ropes[table][row.position * rope..][..rope];
            let Rotated { query, key, value } = rope_kv(&fused, attn, &layer.query_norm, &layer.key_norm, cos_sin);
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
        layer.output.times(&attended)
    }

    fn mlp(&self, index: usize, hidden: &[f64]) -> Vec<f64> {
        let layer = &self.layers[index];
        let x = norm_rows(hidden, &layer.mlp_norm, self.spec.layers[index].mlp_norm.map_or(0.0, |norm| norm.eps));
        layer.down.times(&act_mul::silu_mul(&layer.gate.times(&x), &layer.up.times(&x)))
    }
}

impl Layer {
    fn load(spec: &ModelSpec, tensors: &ModelTensors, index: usize) -> Result<Self> {
        let attn = &spec.layers[index].attn;
        let matrix = |role: fn(usize) -> TensorRole| Matrix::load(tensors, role(index));
        let vector = |role: fn(usize) -> TensorRole| tensors.vector(role(index));
        let vector_if = |wanted, role| if wanted { vector(role) } else { Ok(Vec::new()) };
        Ok(Self {
            attn_norm: vector(TensorRole::AttnNorm)?,
            projections: [matrix(TensorRole::Query)?, matrix(TensorRole::Key)?, matrix(TensorRole::Value)?],
            biases: [
                vector_if(attn.qkv_bias, TensorRole::QueryBias)?,
                vector_if(attn.qkv_bias, TensorRole::KeyBias)?,
                vector_if(attn.qkv_bias, TensorRole::ValueBias)?,
            ],
            query_norm: vector_if(attn.qk_norm.is_some(), TensorRole::QueryNorm)?,
            key_norm: vector_if(attn.qk_norm.is_some(), TensorRole::KeyNorm)?,
            output: matrix(TensorRole::Output)?,
            mlp_norm: vector(TensorRole::MlpNorm)?,
            gate: matrix(TensorRole::Gate)?,
            up: matrix(TensorRole::Up)?,
            down: matrix(TensorRole::Down)?,
        })
    }
}

fn norm_rows(rows: &[f64], weight: &[f32], eps: f32) -> Vec<f64> {
    rows.chunks(weight.len()).flat_map(|row| rms_norm(row, weight, eps)).collect()
}

fn add(to: &mut [f64], from: &[f64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}
