//! The MLP of one layer on the device: gated or plain, or a mixture of gated experts.

use super::experts::Experts;
use super::forms::{Forms, Quantizer, Wanted};
use super::forward::Recording;
use super::load::Loader;
use super::matrix::{DeviceMatrix, Extent, Product, Reads, Target};
use super::norms::Residual;
use crate::error::Result;
use crate::gpu::memory::Slice;
use crate::kernels::Form;
use crate::kernels::act_mul::{self, ActMulParams};
use crate::kernels::experts::Spec;
use crate::kernels::matmul::Epilogue;
use crate::model::files::ModelFiles;
use crate::model::spec::{Activation, MlpKind, TensorRole};
use crate::weights::pack::Arrangement;

/// Ready to record.
#[expect(clippy::large_enum_variant, reason = "there is one for each layer, and it stays where it is")]
pub(super) enum Mlp {
    /// All of it for every token.
    Dense { inner: Inner, down: Down },
    /// Some experts for each token.
    Experts(Experts),
}

/// From the MLP's input to the input of its last projection.
pub(super) enum Inner {
    /// One product: gate and up with the activation between them, or up with bias and activation.
    Whole(Product),
    /// The same, with its rows left as whole numbers.
    WholeLeft(Product),
    /// Gate and up by themselves, where their formats differ.
    Apart(Box<Apart>),
}

/// Gate and up by themselves.
pub(super) struct Apart {
    gate: Product,
    up: Product,
    activation: Activation,
    width: usize,
    rows_per_token: usize,
    params: Slice,
}

impl Mlp {
    /// Loads layer `index`.
    ///
    /// # Errors
    /// A broken file, too little memory, or a lost device.
    pub(super) fn load(loader: &mut Loader<'_>, files: &ModelFiles, index: usize, residual: &Residual) -> Result<Self> {
        use TensorRole as R;
        let tensors = &files.tensors;
        let mlp = &files.spec.layers[index].mlp;
        let mut down_bias = None;
        let down_form = match mlp.kind {
            MlpKind::Experts { .. } => Form::F32,
            _ => loader.form(tensors.matrix(R::Down(index))?.dtype),
        };
        let inner = match mlp.kind {
            MlpKind::Experts { .. } => return Ok(Self::Experts(Experts::load(loader, files, index, residual)?)),
            MlpKind::Gated => {
                let (gate, up) = (tensors.matrix(R::Gate(index))?, tensors.matrix(R::Up(index))?);
                let halves = match gate.dtype == up.dtype {
                    true => vec![loader.matrix(&label(index, "gate and up"), vec![gate, up], Arrangement::GateUp)?],
                    false => vec![
                        loader.matrix(&label(index, "gate"), vec![gate], Arrangement::Stacked)?,
                        loader.matrix(&label(index, "up"), vec![up], Arrangement::Stacked)?,
                    ],
                };
                for half in &halves {
                    loader.count(half.bytes(), half.bytes());
                }
                Inner::gated(loader, &halves, mlp.activation, (Reads::Rows, residual.normed()), (1, down_form))?
            }
            MlpKind::Plain => {
                let up =
                    loader.matrix(&label(index, "up"), vec![tensors.matrix(R::Up(index))?], Arrangement::Stacked)?;
                loader.count(up.bytes(), up.bytes());
                let bias = Some(loader.vector(&tensors.vector(R::UpBias(index))?)?);
                down_bias = Some(loader.vector(&tensors.vector(R::DownBias(index))?)?);
                let target = Target::rows(mlp.intermediate_size, Epilogue::BiasAct(mlp.activation));
                Inner::Whole(Product::new(loader, "up", &up, Target { bias, normed: residual.normed(), ..target })?)
            }
        };
        let down = loader.matrix(&label(index, "down"), vec![tensors.matrix(R::Down(index))?], Arrangement::Stacked)?;
        loader.count(down.bytes(), down.bytes());
        let target = residual.output(files.spec.hidden_size, down_bias);
        let down = Down::new(loader, &down, target, 1)?;
        Ok(Self::Dense { inner, down })
    }

    /// Whether gate and up are computed by themselves.
    pub(super) fn is_apart(&self) -> bool {
        let (Self::Dense { inner, .. } | Self::Experts(Experts { inner, .. })) = self;
        matches!(inner, Inner::Apart(_))
    }

    /// The mixture, if it is one.
    pub(super) fn experts(&self) -> Option<&Spec> {
        match self {
            Self::Dense { .. } => None,
            Self::Experts(experts) => Some(&experts.spec),
        }
    }

    /// What its first products read.
    pub(super) fn wants(&self) -> Wanted {
        match self {
            Self::Dense { inner, .. } => Wanted::of(inner.forms()),
            Self::Experts(experts) => experts.wants(),
        }
    }

    /// Records the sublayer; `next` is what the next layer's attention wants.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record(&self, step: &mut Recording<'_>, residual: &Residual, next: Wanted) -> Result<()> {
        let x = residual.begin(step, self.wants())?;
        match self {
            Self::Dense { inner, down } => {
                let extent = Extent::rows(step.rows);
                inner.record(step, x, extent)?;
                down.record(step, inner.left(), residual.target(step), extent)?;
            }
            Self::Experts(experts) => experts.record(step, x, residual.target(step))?,
        }
        residual.end(step, next)
    }
}

impl Inner {
    /// Of one matrix that holds gate and up, or of one for each, whose input rows may lack the factor of a norm with epsilon
    /// `normed`; `rows_per_token` is more than one for experts, and `next` is the form that the last projection wants.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn gated(
        loader: &mut Loader<'_>,
        halves: &[DeviceMatrix],
        activation: Activation,
        (reads, normed): (Reads, Option<f32>),
        (rows_per_token, next): (usize, Form),
    ) -> Result<Self> {
        let target =
            |matrix: &DeviceMatrix, epilogue| Target { reads, normed, ..Target::rows(matrix.outputs, epilogue) };
        let [gate, up] = halves else {
            let [both] = halves else {
                return Err(crate::error::Error::bug("gate and up are one matrix or two"));
            };
            if next == Form::Int12 && both.has_whole_blocks() {
                let target = target(both, Epilogue::ActMulInt12(activation));
                return Ok(Self::WholeLeft(Product::new(loader, "gate_up", both, target)?));
            }
            let target = target(both, Epilogue::ActMul(activation));
            return Ok(Self::Whole(Product::new(loader, "gate_up", both, target)?));
        };
        let (width, rows) = ((up.outputs / 4) as u32, rows_per_token as u32);
        let params = ActMulParams { width, rows_per_token: rows, reserved: [0; 2] };
        Ok(Self::Apart(Box::new(Apart {
            gate: Product::new(loader, "gate", gate, target(gate, Epilogue::Store))?,
            up: Product::new(loader, "up", up, target(up, Epilogue::Store))?,
            activation,
            width: up.outputs,
            rows_per_token,
            params: loader.params(bytemuck::bytes_of(&params))?,
        })))
    }

    /// How its products take activations.
    pub(super) fn forms(&self) -> Vec<Form> {
        match self {
            Self::Whole(product) | Self::WholeLeft(product) => vec![product.form()],
            Self::Apart(apart) => vec![apart.gate.form(), apart.up.form()],
        }
    }

    /// The form in which it leaves the buffer of activations.
    pub(super) fn left(&self) -> Form {
        if matches!(self, Self::WholeLeft(_)) { Form::Int12 } else { Form::F32 }
    }

    /// Records the way from `x` to the buffer of activations.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record(&self, step: &mut Recording<'_>, x: Forms<'_>, extent: Extent) -> Result<()> {
        let b = step.buffers;
        let apart = match self {
            Self::Whole(product) | Self::WholeLeft(product) => return product.record(step, x, &b.activated, extent),
            Self::Apart(apart) => apart,
        };
        apart.gate.record(step, x, &b.gate, extent)?;
        apart.up.record(step, x, &b.up, extent)?;
        let arguments =
            [("inputs", &b.inputs), ("gate", &b.gate), ("up", &b.up), ("out", &b.activated), ("params", &apart.params)];
        let profile = &step.gpu.profile;
        let grid = act_mul::grid(apart.width, step.rows * apart.rows_per_token, profile);
        step.dispatch("act_mul", &act_mul::variant(apart.activation, profile), &arguments, grid)
    }
}

/// The last projection, which reads the buffer of activations.
pub(super) struct Down {
    product: Product,
    quantizer: Quantizer,
}

impl Down {
    /// With so many rows of activations for each token.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn new(
        loader: &mut Loader<'_>,
        matrix: &DeviceMatrix,
        target: Target,
        rows_per_token: usize,
    ) -> Result<Self> {
        let quantizer = Quantizer::new(loader, matrix.blocks * 32, rows_per_token)?;
        Ok(Self { product: Product::new(loader, "down", matrix, target)?, quantizer })
    }

    /// Records it, for activations that were left in this form.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record(&self, step: &mut Recording<'_>, left: Form, out: &Slice, extent: Extent) -> Result<()> {
        let activated = &step.buffers.activated;
        let x = match self.product.form() == left {
            true => activated,
            false => self.quantizer.record(step, activated)?,
        };
        self.product.record(step, Forms::only(x), out, extent)
    }
}

/// What a matrix is called in messages.
pub(super) fn label(index: usize, name: &str) -> String {
    format!("layer {index} {name}")
}
