//! A mixture of experts on the device: scores, choice, the products of the chosen, and their sum.
//!
//! Few tokens multiply pair by pair, each with its own expert's weights. Many are grouped first, so that an expert's weights are read
//! once for several of its tokens. Both give the same bits.

use super::forms::{Forms, Wanted};
use super::forward::Recording;
use super::load::Loader;
use super::matrix::{DeviceMatrix, Extent, Product, Reads, Target};
use super::mlp::{Down, Inner, label};
use super::norms::Residual;
use crate::error::{Error, Result};
use crate::gpu::memory::Slice;
use crate::kernels::experts::{self as kernel, CombineExpertsParams, Spec, Sum};
use crate::kernels::matmul::Epilogue;
use crate::model::files::ModelFiles;
use crate::model::spec::{MlpKind, MlpSpec, TensorRole};
use crate::weights::pack::Arrangement;
use crate::weights::tensors::MatrixRef;

/// Ready to record.
pub(super) struct Experts {
    pub(super) spec: Spec,
    router: Product,
    pub(super) inner: Inner,
    down: Down,
    sum: Sum,
    width: usize,
    params: Slice,
}

/// The mixture that an MLP is, if it is one.
pub(super) fn spec_of(mlp: &MlpSpec) -> Option<Spec> {
    match mlp.kind {
        MlpKind::Experts { count, chosen, normalize } => Some(Spec { count, chosen, normalize }),
        MlpKind::Gated | MlpKind::Plain => None,
    }
}

/// Each part by itself.
fn alone(parts: Vec<MatrixRef<'_>>) -> Vec<Vec<MatrixRef<'_>>> {
    parts.into_iter().map(|part| vec![part]).collect()
}

impl Experts {
    /// Loads layer `index`.
    ///
    /// # Errors
    /// A broken file, too little memory, or a lost device.
    pub(super) fn load(loader: &mut Loader<'_>, files: &ModelFiles, index: usize, residual: &Residual) -> Result<Self> {
        use TensorRole as R;
        let tensors = &files.tensors;
        let mlp = &files.spec.layers[index].mlp;
        let spec = spec_of(mlp).ok_or_else(|| Error::bug(format!("layer {index} has no experts")))?;

        // Never rounded: close scores decide who computes.
        let router = loader.exact_matrix(&label(index, "router"), vec![tensors.matrix(R::Router(index))?])?;
        loader.count(router.bytes(), router.bytes());
        let parts = |role, name: &str| -> Result<Vec<MatrixRef<'_>>> {
            let parts = tensors.parts(role)?;
            match parts.len() == spec.count {
                true => Ok(parts),
                false => Err(Error::load(format!(
                    "layer {index} has {} {name} projections for {} experts",
                    parts.len(),
                    spec.count
                ))),
            }
        };
        let (gates, ups) = (parts(R::Gate(index), "gate")?, parts(R::Up(index), "up")?);
        let downs = parts(R::Down(index), "down")?;
        let same = gates.iter().zip(&ups).all(|(gate, up)| gate.dtype == up.dtype);
        let halves = match same {
            true => {
                let both = gates.into_iter().zip(ups).map(|(gate, up)| vec![gate, up]).collect();
                vec![loader.experts(&label(index, "gates and ups"), both, Arrangement::GateUp)?]
            }
            false => vec![
                loader.experts(&label(index, "gates"), alone(gates), Arrangement::Stacked)?,
                loader.experts(&label(index, "ups"), alone(ups), Arrangement::Stacked)?,
            ],
        };
        let down = loader.experts(&label(index, "downs"), alone(downs), Arrangement::Stacked)?;
        // A token reads its own experts only.
        for matrix in halves.iter().chain([&down]) {
            loader.count(matrix.bytes(), matrix.bytes() * spec.chosen as u64 / spec.count as u64);
        }

        let width = files.spec.hidden_size;
        let params = CombineExpertsParams { width: (width / 4) as u32, reserved: [0; 3] };
        let pairs = |matrix: &DeviceMatrix, sharing| Target {
            reads: Reads::Pairs(sharing),
            ..Target::rows(matrix.outputs, Epilogue::Store)
        };
        Ok(Self {
            router: Product::new(loader, "router", &router, Target::rows(spec.count, Epilogue::Store))?,
            inner: Inner::gated(
                loader,
                &halves,
                mlp.activation,
                (Reads::Pairs(spec.chosen), None),
                (spec.chosen, down.form),
            )?,
            down: Down::new(loader, &down, pairs(&down, 1), spec.chosen)?,
            sum: if residual.adds() { Sum::Added } else { Sum::Stored },
            width,
            params: loader.params(bytemuck::bytes_of(&params))?,
            spec,
        })
    }

    /// What the router and the experts read.
    pub(super) fn wants(&self) -> Wanted {
        Wanted::of([self.router.form()].into_iter().chain(self.inner.forms()))
    }

    /// Records the way from `x` to `out`.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record(&self, step: &mut Recording<'_>, x: Forms<'_>, out: &Slice) -> Result<()> {
        let (b, rows, spec) = (step.buffers, step.rows, &self.spec);
        let profile = &step.gpu.profile;
        self.router.record(step, x, &b.scores, Extent::rows(rows))?;
        let tile = spec.tile(rows);
        let arguments = [("inputs", &b.inputs), ("scores", &b.scores), ("chosen", &b.chosen), ("routes", &b.routes)];
        let variant = kernel::route_variant(spec, tile, profile);
        step.dispatch("route_experts", &variant, &arguments, kernel::route_grid(rows))?;
        if tile > 1 {
            let arguments = [("inputs", &b.inputs), ("chosen", &b.chosen), ("routes", &b.routes)];
            let variant = kernel::group_variant(spec, tile, profile);
            step.dispatch("group_experts", &variant, &arguments, kernel::group_grid(spec))?;
        }
        let extent = Extent { tile, tiles: spec.tiles(rows, tile) };
        self.inner.record(step, x, extent)?;
        self.down.record(step, self.inner.left(), &b.expert_outputs, extent)?;
        let arguments = [
            ("inputs", &b.inputs),
            ("chosen", &b.chosen),
            ("x", &b.expert_outputs),
            ("out", out),
            ("params", &self.params),
        ];
        let variant = kernel::combine_variant(spec, self.sum, profile);
        step.dispatch("combine_experts", &variant, &arguments, kernel::combine_grid(self.width, rows, profile))
    }
}
