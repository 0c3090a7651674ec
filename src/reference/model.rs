//! A whole model on the CPU: the weights of its files, decoded once, and a walk over its spec that calls the twins.

use super::attention::soft_cap;
use super::embed::embed_at;
use super::kv::{FlatKv, KvMemory};
use super::kv_precision::KvPrecision;
use super::layer::{Layer, Matrix, Norm};
use crate::base::TokenId;
use crate::error::{Error, Result};
use crate::model::files::ModelFiles;
use crate::model::rope::cos_sin_table;
use crate::model::spec::{ModelSpec, TensorRole};

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
    /// Output of a layer's attention, after the output projection, before a norm and before it is added.
    Attention(usize),
    /// Output of a layer's MLP, before a norm and before it is added.
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

/// Weights in f32, arithmetic in f64.
pub struct ReferenceModel {
    /// What the model is made of.
    pub spec: ModelSpec,
    embed: Matrix,
    /// Learned positions, if the model has them.
    positions: Option<Matrix>,
    /// `None` if the embedding is the head.
    head: Option<Matrix>,
    final_norm: Norm,
    layers: Vec<Layer>,
    /// Cosines and sines, `[positions][rotary_dim / 2]` for each of the spec's ropes.
    ropes: Vec<Vec<[f32; 2]>>,
    context: usize,
}

impl ReferenceModel {
    /// Decodes all weights and prepares rotary tables for sequences of up to `context` tokens.
    ///
    /// # Errors
    /// A tensor is missing or cannot be read.
    pub fn load(files: &ModelFiles, context: usize) -> Result<Self> {
        let (spec, tensors) = (files.spec.clone(), &files.tensors);
        let layers = spec.layers.iter().enumerate().map(|(index, layer)| Layer::load(layer, tensors, index));
        let optional = |wanted: bool, role| wanted.then(|| Matrix::load(tensors, role)).transpose();
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            embed: Matrix::load(tensors, TensorRole::Embed)?,
            positions: optional(spec.learned_positions, TensorRole::Positions)?,
            head: optional(!spec.tied_head, TensorRole::Head)?,
            final_norm: Norm::load(tensors, spec.final_norm, TensorRole::FinalNorm, Some(TensorRole::FinalNormBias))?,
            ropes: spec.ropes.iter().map(|rope| cos_sin_table(rope, context)).collect(),
            context,
            spec,
        })
    }

    /// Computes `rows` and returns what the output head reads, `[rows][hidden_size]`. Every key and value is stored
    /// before any row attends, so rows of one sequence may come together in any order.
    pub fn forward(&self, rows: &[Row], memory: &mut dyn KvMemory, tap: &mut dyn FnMut(Tap, &[f64])) -> Vec<f64> {
        let width = self.spec.hidden_size;
        let mut hidden = Vec::with_capacity(rows.len() * width);
        for row in rows {
            let learned = self.positions.as_ref().map(|table| table.row(row.position));
            let weights = |row: usize, out: &mut [f32]| self.embed.decode(row, out);
            hidden.extend(embed_at(&weights, width, row.token, self.spec.embed_scale, learned));
        }
        tap(Tap::Embed, &hidden);
        for (index, layer) in self.layers.iter().enumerate() {
            let cos_sin = |position| self.cos_sin(index, position);
            let attention = layer.attention(index, &hidden, rows, &cos_sin, memory);
            tap(Tap::Attention(index), &attention);
            add(&mut hidden, attention, layer.attn_post_norm.as_ref());
            let mlp = layer.mlp(&hidden);
            tap(Tap::Mlp(index), &mlp);
            add(&mut hidden, mlp, layer.mlp_post_norm.as_ref());
            tap(Tap::Layer(index), &hidden);
        }
        let normed = self.final_norm.apply(&hidden);
        tap(Tap::FinalNorm, &normed);
        normed
    }

    /// Logits of one row of what [`forward`](Self::forward) returned.
    pub fn logits(&self, normed: &[f64]) -> Vec<f64> {
        let logits = self.head.as_ref().unwrap_or(&self.embed).times(normed);
        logits.into_iter().map(|logit| soft_cap(logit, self.spec.final_softcap)).collect()
    }

    /// Computes `tokens` from position 0 in one piece, without paging, and keeps everything; KV entries are rounded to `precision`.
    ///
    /// # Errors
    /// A token is outside the vocabulary, or there are more tokens than positions.
    pub fn trace(&self, tokens: &[TokenId], precision: KvPrecision) -> Result<Trace> {
        if tokens.len() > self.context {
            let (count, positions) = (tokens.len(), self.context);
            return Err(Error::config(format!("{count} tokens exceed the {positions} positions of this reference")));
        }
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.spec.vocab_size) {
            return Err(Error::config(format!("token {token} is outside the vocabulary of {}", self.spec.vocab_size)));
        }
        let rows: Vec<Row> =
            tokens.iter().enumerate().map(|(position, &token)| Row { token, position, slot: 0 }).collect();
        let mut memory = FlatKv::new(&self.spec, precision);
        let mut taps = Vec::new();
        let normed = self.forward(&rows, &mut memory, &mut |tap, rows| taps.push((tap, rows.to_vec())));
        let logits = normed.chunks(self.spec.hidden_size).map(|row| self.logits(row)).collect();
        Ok(Trace { taps, keys: memory.keys, values: memory.values, logits })
    }

    /// The row of the rotary table that layer `index` uses; empty if it does not rotate.
    fn cos_sin(&self, index: usize, position: usize) -> &[[f32; 2]] {
        let Some(table) = self.spec.layers[index].attn.rope else { return &[] };
        let width = self.spec.ropes[table].rotary_dim / 2;
        &self.ropes[table][position * width..][..width]
    }
}

/// Adds what a sublayer gave, normed if there is a norm after it.
fn add(hidden: &mut [f64], given: Vec<f64>, norm: Option<&Norm>) {
    let given = match norm {
        Some(norm) => norm.apply(&given),
        None => given,
    };
    for (to, from) in hidden.iter_mut().zip(given) {
        *to += from;
    }
}
