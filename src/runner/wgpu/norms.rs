//! Norms, and how sublayers meet the residual stream: what each reads, and how its output joins.

use super::forms::{Forms, Quantizer, Wanted};
use super::forward::Recording;
use super::load::Loader;
use super::matrix::Target;
use crate::error::Result;
use crate::gpu::memory::Slice;
use crate::kernels::Form;
use crate::kernels::matmul::Epilogue;
use crate::kernels::norm::{self, NormParams, Rows};
use crate::kernels::norm_add::{self, Next, NormAddParams};
use crate::model::files::ModelFiles;
use crate::model::spec::{MlpKind, NormKind, NormSpec, TensorRole};
use crate::weights::pack::has_bits_plane;

/// A norm's weight, bias and parameters.
pub(super) struct Norm {
    kind: NormKind,
    weight: Slice,
    /// Of layer norms.
    bias: Option<Slice>,
    params: Slice,
}

/// A norm with the roles of its weight and of the bias that a layer norm has.
#[derive(Clone, Copy)]
pub(super) struct NormTensors {
    pub(super) spec: NormSpec,
    pub(super) weight: TensorRole,
    pub(super) bias: TensorRole,
}

impl Norm {
    /// Loads a norm; `first_sample` is for those of wanted rows.
    ///
    /// # Errors
    /// A missing tensor, or out of memory.
    pub(super) fn load(
        loader: &mut Loader<'_>,
        files: &ModelFiles,
        norm: NormTensors,
        first_sample: usize,
    ) -> Result<Self> {
        let weight = files.tensors.vector(norm.weight)?;
        let bias = match norm.spec.kind {
            NormKind::Layer => Some(loader.vector(&files.tensors.vector(norm.bias)?)?),
            NormKind::Rms => None,
        };
        let (width, eps) = ((weight.len() / 4) as u32, norm.spec.eps);
        let params = NormParams { width, eps, first_sample: first_sample as u32, reserved: 0 };
        let params = loader.params(bytemuck::bytes_of(&params))?;
        Ok(Self { kind: norm.spec.kind, weight: loader.vector(&weight)?, bias, params })
    }

    /// Records the norm of `count` rows, left in `form`.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn record(
        &self,
        step: &mut Recording<'_>,
        rows: Rows,
        form: Form,
        x: &Slice,
        out: &Slice,
        count: usize,
    ) -> Result<()> {
        let mut arguments = vec![
            ("inputs", &step.buffers.inputs),
            ("x", x),
            ("weight", &self.weight),
            ("result", out),
            ("params", &self.params),
        ];
        arguments.extend(self.bias.iter().map(|bias| ("bias", bias)));
        let variant = norm::variant(self.kind, rows, form, &step.gpu.profile);
        step.dispatch("norm", &variant, &arguments, norm::grid(count))
    }
}

/// A norm of a sublayer's output, and the next sublayer's norm if that can follow at once.
struct PostNorm {
    weight: Slice,
    next_weight: Option<Slice>,
    params: Slice,
}

/// What a sublayer reads.
enum Input {
    /// The residual stream itself.
    Hidden,
    /// Its norm.
    Normed(Norm),
    /// Its norm, which the sublayer before has made already.
    Prepared,
    /// What the last product of the sublayer before left: its norm, but for a factor that is found with this epsilon.
    Left(f32),
}

/// What becomes of a sublayer's output.
enum Output {
    /// Its last product adds it to the residual stream.
    Added,
    /// It is stored, normed and added.
    Normed(PostNorm),
}

/// A sublayer's place in the residual stream.
pub(super) struct Residual {
    input: Input,
    output: Output,
    /// Weight of the norm before the next sublayer, if the last product leaves its rows for that.
    leaves: Option<Slice>,
    /// For inputs that nobody left as int12.
    quantizer: Quantizer,
}

/// The norms around one sublayer.
struct Around {
    before: Option<NormTensors>,
    after: Option<(TensorRole, NormSpec)>,
    /// What its first products want.
    wants: Wanted,
    /// Whether its last product may leave rows for the next sublayer.
    may_leave: bool,
}

impl Residual {
    /// Loads the norms around the attention and the MLP of every layer.
    ///
    /// # Errors
    /// A missing tensor, or out of memory.
    pub(super) fn load_all(loader: &mut Loader<'_>, files: &ModelFiles) -> Result<Vec<[Self; 2]>> {
        use TensorRole as R;
        let tensors = &files.tensors;
        let mut around = Vec::with_capacity(2 * files.spec.layers.len());
        for (n, layer) in files.spec.layers.iter().enumerate() {
            let dtype = |role| tensors.matrix(role).map(|matrix| matrix.dtype);
            let wants = |roles: &[R]| -> Result<Wanted> {
                let forms = roles.iter().map(|role| dtype(*role).map(|dtype| loader.form(dtype)));
                Ok(Wanted::of(forms.collect::<Result<Vec<_>>>()?))
            };
            // Bindings are few: a plane of high bits or a bias takes the last one.
            let may_leave = |role| dtype(role).map(|dtype| !has_bits_plane(loader.loaded(dtype)));
            let before = |spec: Option<NormSpec>, weight, bias| spec.map(|spec| NormTensors { spec, weight, bias });
            around.push(Around {
                before: before(layer.attn_norm, R::AttnNorm(n), R::AttnNormBias(n)),
                after: layer.attn_post_norm.map(|spec| (R::AttnPostNorm(n), spec)),
                wants: wants(&[R::Query(n), R::Key(n), R::Value(n)])?,
                may_leave: !layer.attn.output_bias && may_leave(R::Output(n))?,
            });
            let (wants, may_leave) = match layer.mlp.kind {
                MlpKind::Gated => (wants(&[R::Gate(n), R::Up(n)])?, may_leave(R::Down(n))?),
                MlpKind::Plain => (wants(&[R::Up(n)])?, false),
                MlpKind::Experts { .. } => (Wanted::Both, false),
            };
            around.push(Around {
                before: before(layer.mlp_norm, R::MlpNorm(n), R::MlpNormBias(n)),
                after: layer.mlp_post_norm.map(|spec| (R::MlpPostNorm(n), spec)),
                wants,
                may_leave,
            });
        }
        let mut all = Vec::with_capacity(files.spec.layers.len());
        for index in (0..around.len()).step_by(2) {
            all.push([Self::load(loader, files, &around, index)?, Self::load(loader, files, &around, index + 1)?]);
        }
        Ok(all)
    }

    fn load(loader: &mut Loader<'_>, files: &ModelFiles, around: &[Around], index: usize) -> Result<Self> {
        let input = match around[index].before {
            None => Input::Hidden,
            Some(norm) if index > 0 && around[index - 1].leaves_for(&around[index]).is_some() => {
                Input::Left(norm.spec.eps)
            }
            Some(_) if index > 0 && around[index - 1].prepares(&around[index]).is_some() => Input::Prepared,
            Some(norm) => Input::Normed(Norm::load(loader, files, norm, 0)?),
        };
        let output = match around[index].after {
            None => Output::Added,
            Some((role, spec)) => {
                let weight = files.tensors.vector(role)?;
                let next = around.get(index + 1).and_then(|next| around[index].prepares(next));
                let next_weight = match next {
                    Some(next) => Some(loader.vector(&files.tensors.vector(next.weight)?)?),
                    None => None,
                };
                let params = NormAddParams {
                    width: (weight.len() / 4) as u32,
                    eps: spec.eps,
                    next_eps: next.map_or(0.0, |next| next.spec.eps),
                    reserved: 0,
                };
                let params = loader.params(bytemuck::bytes_of(&params))?;
                Output::Normed(PostNorm { weight: loader.vector(&weight)?, next_weight, params })
            }
        };
        let leaves = match around.get(index + 1).and_then(|next| around[index].leaves_for(next)) {
            Some(norm) => Some(loader.vector(&files.tensors.vector(norm.weight)?)?),
            None => None,
        };
        Ok(Self { input, output, leaves, quantizer: Quantizer::new(loader, files.spec.hidden_size, 1)? })
    }

    /// Records what comes before the sublayer, and returns what it reads, in the forms that it wants.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn begin<'a>(&self, step: &mut Recording<'a>, wanted: Wanted) -> Result<Forms<'a>> {
        let b = step.buffers;
        let f32 = match &self.input {
            Input::Hidden => &b.hidden,
            Input::Normed(norm) => {
                norm.record(step, Rows::All, wanted.left(), &b.hidden, &b.normed, step.rows)?;
                &b.normed
            }
            Input::Prepared | Input::Left(_) => &b.normed,
        };
        let int12 = match (&self.input, wanted) {
            (_, Wanted::Both) | (Input::Hidden, Wanted::One(Form::Int12)) => self.quantizer.record(step, f32)?,
            _ => &b.normed,
        };
        Ok(Forms { f32, int12 })
    }

    /// Whether the sublayer's last dispatch adds its output to the residual stream itself.
    pub(super) fn adds(&self) -> bool {
        matches!(self.output, Output::Added)
    }

    /// Epsilon of the norm whose factor the rows that the sublayer reads still lack.
    pub(super) fn normed(&self) -> Option<f32> {
        if let Input::Left(eps) = self.input { Some(eps) } else { None }
    }

    /// Where the sums of the sublayer's last product go, in rows of `width`.
    pub(super) fn output(&self, width: usize, bias: Option<Slice>) -> Target {
        let epilogue = match (self.adds(), &bias, &self.leaves) {
            (true, None, Some(_)) => Epilogue::AddLeft,
            (true, None, None) => Epilogue::Add,
            (true, Some(_), _) => Epilogue::AddBias,
            (false, None, _) => Epilogue::Store,
            (false, Some(_), _) => Epilogue::Bias,
        };
        Target { bias, next_weight: self.leaves.clone(), ..Target::rows(width, epilogue) }
    }

    /// Where the sublayer's last dispatch writes.
    pub(super) fn target<'a>(&self, step: &Recording<'a>) -> &'a Slice {
        match self.output {
            Output::Added => &step.buffers.hidden,
            Output::Normed(_) => &step.buffers.sublayer,
        }
    }

    /// Records what comes after the sublayer; `next` is what the one after it wants.
    ///
    /// # Errors
    /// A bug of ours.
    pub(super) fn end(&self, step: &mut Recording<'_>, next: Wanted) -> Result<()> {
        let Output::Normed(norm) = &self.output else { return Ok(()) };
        let b = step.buffers;
        let mut arguments = vec![
            ("inputs", &b.inputs),
            ("x", &b.sublayer),
            ("weight", &norm.weight),
            ("hidden", &b.hidden),
            ("params", &norm.params),
        ];
        if let Some(weight) = &norm.next_weight {
            arguments.extend([("next_weight", weight), ("result", &b.normed)]);
        }
        let next = if norm.next_weight.is_some() { Next::Rms(next.left()) } else { Next::None };
        let variant = norm_add::variant(next, &step.gpu.profile);
        step.dispatch("norm_add", &variant, &arguments, norm_add::grid(step.rows))
    }
}

impl Around {
    /// The norm before `next`, if this sublayer's last product leaves its rows as they are behind that norm, but for a factor.
    fn leaves_for(&self, next: &Self) -> Option<NormTensors> {
        let norm = next.before.filter(|norm| norm.spec.kind == NormKind::Rms);
        norm.filter(|_| self.may_leave && self.after.is_none() && next.wants == Wanted::One(Form::Int12))
    }

    /// The norm before `next`, if this sublayer's last dispatch makes it.
    fn prepares(&self, next: &Self) -> Option<NormTensors> {
        let norm = next.before.filter(|norm| norm.spec.kind == NormKind::Rms);
        norm.filter(|_| self.after.is_some())
    }
}
