//! The tensors of one model by role: found, and checked against the expected shapes, when the model is opened.

use super::source::{TensorInfo, WeightSource};
use crate::base::DType;
use crate::error::{Error, Result};
use crate::model::spec::TensorRole;
use crate::quant::decode;
use std::collections::HashMap;

pub use super::binding::{Part, RowOrder, TensorBinding};
pub use super::matrix::MatrixRef;
use super::matrix::row_bytes;

/// A model's tensors, by role.
pub struct ModelTensors {
    source: Box<dyn WeightSource>,
    by_role: HashMap<TensorRole, Vec<Bound>>,
    tied_head: bool,
}

/// A binding, and the tensor that it found.
struct Bound {
    index: usize,
    binding: TensorBinding,
}

impl ModelTensors {
    /// Finds all tensors in `source`. If no binding has the role `Head`, the embedding serves as output head too.
    ///
    /// # Errors
    /// Names the first tensor that is missing, has another shape or a type that octavo does not read.
    pub fn bind(source: Box<dyn WeightSource>, bindings: &[TensorBinding]) -> Result<Self> {
        let mut by_role: HashMap<TensorRole, Vec<Bound>> = HashMap::with_capacity(bindings.len());
        for binding in bindings {
            let name = &binding.name;
            let Some(index) = source.find(name) else {
                return Err(match source.unread_type(name) {
                    Some(kind) => unread_type_error(name, kind),
                    None => Error::load(format!(
                        "tensor {name} is missing from the model; check that all files are there and complete"
                    )),
                });
            };
            let (found, expected) = (&source.tensors()[index], binding.file_shape());
            if !same_shape(&found.shape, &expected) {
                return Err(Error::load(format!(
                    "tensor {name} has shape {:?}, but the model's configuration asks for {expected:?}",
                    found.shape
                )));
            }
            by_role.entry(binding.role).or_default().push(Bound { index, binding: binding.clone() });
        }
        let tied_head = !by_role.contains_key(&TensorRole::Head);
        Ok(Self { source, by_role, tied_head })
    }

    /// The matrix with this role. Of a model with tied embeddings, `Head` is the embedding.
    ///
    /// # Errors
    /// The model has none or several, or the matrix is transposed and cannot be turned.
    pub fn matrix(&self, role: TensorRole) -> Result<MatrixRef<'_>> {
        match self.bound(role)? {
            [bound] => self.read(bound),
            several => Err(Error::bug(format!("{role:?} has {} parts, which are not one matrix", several.len()))),
        }
    }

    /// The matrices with this role: the experts of a mixture in their order, or the one matrix of any other role.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub fn parts(&self, role: TensorRole) -> Result<Vec<MatrixRef<'_>>> {
        self.bound(role)?.iter().map(|bound| self.read(bound)).collect()
    }

    /// The vector with this role, widened to f32; `weight - 1` of the files is made `weight`.
    ///
    /// # Errors
    /// The model has none.
    pub fn vector(&self, role: TensorRole) -> Result<Vec<f32>> {
        let [Bound { index, binding }] = self.bound(role)? else {
            return Err(Error::bug(format!("{role:?} has several parts, which are not one vector")));
        };
        let info = &self.source.tensors()[*index];
        let mut in_file = vec![0.0; info.shape.iter().product()];
        decode(info.dtype, self.source.bytes(*index), &mut in_file);
        let (first, count) = (binding.first_row(), binding.shape.iter().product());
        let element = |element| in_file[first + binding.order.file_row(element)] + f32::from(binding.offset);
        Ok((0..count).map(element).collect())
    }

    /// Whether the model has a tensor of its own for this role; `Head` of a model with tied embeddings has none.
    pub fn has(&self, role: TensorRole) -> bool {
        self.by_role.contains_key(&role)
    }

    /// All tensors of the files, ordered by name, used or not.
    pub fn infos(&self) -> impl Iterator<Item = &TensorInfo> {
        self.source.tensors().iter()
    }

    /// The files behind the tensors.
    pub fn source(&self) -> &dyn WeightSource {
        &*self.source
    }

    fn bound(&self, role: TensorRole) -> Result<&[Bound]> {
        let role = if role == TensorRole::Head && self.tied_head { TensorRole::Embed } else { role };
        let bound = self.by_role.get(&role).map(Vec::as_slice);
        bound.ok_or_else(|| Error::bug(format!("this model has no tensor for {role:?}")))
    }

    fn read(&self, Bound { index, binding }: &Bound) -> Result<MatrixRef<'_>> {
        let (dtype, bytes) = (self.source.tensors()[*index].dtype, self.source.bytes(*index));
        // A vector counts as a matrix of one row.
        let columns = *binding.shape.last().expect("a bound tensor has at least one dimension");
        let rows = binding.shape.iter().rev().skip(1).product();
        let matrix = match binding.part {
            Part::TransposedColumns { start, of } => MatrixRef::transposed(dtype, [rows, columns], bytes, start, of),
            _ => row_bytes(dtype, columns).and_then(|row_bytes| {
                // Both products are within the tensor, whose shape was compared.
                let first = if binding.shape.len() == 1 { 0 } else { binding.first_row() * row_bytes };
                MatrixRef::new(dtype, rows, columns, &bytes[first..first + rows * row_bytes])
            }),
        };
        Ok(matrix.map_err(|error| error.context(&binding.name))?.ordered(binding.order))
    }
}

/// The error for a tensor whose type is known, but not read yet.
pub(super) fn unread_type_error(name: &str, kind: &str) -> Error {
    let supported: Vec<String> = DType::ALL.iter().map(|dtype| dtype.name().to_uppercase()).collect();
    Error::load(format!(
        "tensor {name} has type {kind}, which octavo does not read yet; supported: {}",
        supported.join(", ")
    ))
}

/// Equality up to leading ones, which some writers drop.
fn same_shape(left: &[usize], right: &[usize]) -> bool {
    let significant = |shape: &[usize]| -> Vec<usize> { shape.iter().copied().skip_while(|&n| n == 1).collect() };
    significant(left) == significant(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One {
        infos: Vec<TensorInfo>,
        bytes: Vec<u8>,
    }

    impl WeightSource for One {
        fn tensors(&self) -> &[TensorInfo] {
            &self.infos
        }

        fn bytes(&self, _: usize) -> &[u8] {
            &self.bytes
        }
    }

    /// A single F32 tensor `t` that counts from 0.
    fn counting(shape: &[usize]) -> Box<dyn WeightSource> {
        let info = TensorInfo { name: "t".into(), shape: shape.to_vec(), dtype: DType::F32 };
        let bytes = (0..shape.iter().product()).flat_map(|n: usize| (n as f32).to_le_bytes()).collect();
        Box::new(One { infos: vec![info], bytes })
    }

    fn first_elements(matrix: &MatrixRef<'_>) -> Vec<f32> {
        let mut row = vec![0.0; matrix.columns];
        let first = |index| {
            matrix.decode_row(index, &mut row);
            row[0]
        };
        (0..matrix.rows).map(first).collect()
    }

    #[test]
    fn a_role_may_be_rows_columns_or_a_layer_of_a_tensor() {
        let key = || TensorBinding::new(TensorRole::Key(0), "t", &[2, 3]);
        let read = |shape: &[usize], binding| {
            let tensors = ModelTensors::bind(counting(shape), &[binding]).unwrap();
            first_elements(&tensors.matrix(TensorRole::Key(0)).unwrap())
        };
        assert_eq!(read(&[6, 3], key().rows_of("t", 3, 6)), [9.0, 12.0]);
        assert_eq!(read(&[3, 6], key().transposed_columns_of("t", 3, 6)), [3.0, 4.0]);
        assert_eq!(read(&[4, 2, 3], TensorBinding { part: Part::Layer { index: 2, count: 4 }, ..key() }), [12.0, 15.0]);
        // The order of pairs holds within the part.
        let order = RowOrder::InterleavedPairs { head_dim: 4, rotary_dim: 4 };
        let query = TensorBinding { order, ..TensorBinding::new(TensorRole::Key(0), "t", &[4, 1]) };
        assert_eq!(read(&[6, 1], query.rows_of("t", 2, 6)), [2.0, 4.0, 3.0, 5.0]);
    }

    #[test]
    fn bindings_of_one_role_are_its_parts() {
        let expert = |index| TensorBinding {
            part: Part::Layer { index, count: 3 },
            ..TensorBinding::new(TensorRole::Up(0), "t", &[2, 2])
        };
        let tensors = ModelTensors::bind(counting(&[3, 2, 2]), &[expert(0), expert(1), expert(2)]).unwrap();
        let parts = tensors.parts(TensorRole::Up(0)).unwrap();
        assert_eq!(parts.iter().map(first_elements).collect::<Vec<_>>(), [[0.0, 2.0], [4.0, 6.0], [8.0, 10.0]]);
        assert!(tensors.matrix(TensorRole::Up(0)).err().unwrap().to_string().contains("3 parts"));
    }

    #[test]
    fn vectors_may_be_parts_and_lack_one() {
        let bias = TensorBinding::new(TensorRole::KeyBias(0), "t", &[2]).rows_of("t", 3, 6).plus_one();
        let tensors = ModelTensors::bind(counting(&[6]), &[bias]).unwrap();
        assert_eq!(tensors.vector(TensorRole::KeyBias(0)).unwrap(), [4.0, 5.0]);
    }

    #[test]
    fn vectors_may_end_within_a_block() {
        let gamma = TensorBinding::new(TensorRole::FinalNorm, "t", &[37]);
        let tensors = ModelTensors::bind(counting(&[37]), &[gamma]).unwrap();
        assert_eq!(tensors.vector(TensorRole::FinalNorm).unwrap(), (0..37).map(|n| n as f32).collect::<Vec<_>>());
    }

    #[test]
    fn shapes_may_differ_by_leading_ones() {
        assert!(same_shape(&[32], &[1, 32]) && same_shape(&[2, 3], &[2, 3]));
        assert!(!same_shape(&[3, 2], &[2, 3]) && !same_shape(&[32], &[32, 1]));
    }
}
