//! The tensors of one model by role: found, and checked against the expected shapes, when the model is opened.

use super::source::{TensorInfo, WeightSource};
use crate::base::DType;
use crate::error::{Error, Result};
use crate::model::spec::TensorRole;
use crate::quant::{BLOCK_COLUMNS, format};
use std::collections::HashMap;

/// Order of the rows of a query or key projection in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// As the model uses them: row i of a head rotates with row i + rotary_dim / 2.
    Plain,
    /// Row 2i rotates with row 2i + 1, as in GGUF files of the llama family.
    InterleavedPairs {
        /// Rows of one head.
        head_dim: usize,
        /// Leading rows of a head that rotate; even.
        rotary_dim: usize,
    },
}

impl RowOrder {
    /// Where the file keeps the row that the model calls `row`.
    pub fn file_row(self, row: usize) -> usize {
        match self {
            Self::Plain => row,
            Self::InterleavedPairs { head_dim, rotary_dim } => {
                let (head, element) = (row / head_dim, row % head_dim);
                if element >= rotary_dim {
                    return row;
                }
                let half = rotary_dim / 2;
                head * head_dim + element % half * 2 + element / half
            }
        }
    }
}

/// What a model expects of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorBinding {
    /// Its part in the model.
    pub role: TensorRole,
    /// Its name in the file.
    pub name: String,
    /// `[rows, columns]` of a matrix or `[n]` of a vector.
    pub shape: Vec<usize>,
    /// Order of its rows, or of its elements if it is a vector.
    pub order: RowOrder,
}

/// A model's tensors, by role.
pub struct ModelTensors {
    source: Box<dyn WeightSource>,
    by_role: HashMap<TensorRole, Bound>,
    tied_head: bool,
}

#[derive(Clone, Copy)]
struct Bound {
    index: usize,
    order: RowOrder,
}

impl ModelTensors {
    /// Finds all tensors in `source`. If no binding has the role `Head`, the embedding serves as output head too.
    ///
    /// # Errors
    /// Names the first tensor that is missing, has another shape or a type that octavo does not read.
    pub fn bind(source: Box<dyn WeightSource>, bindings: &[TensorBinding]) -> Result<Self> {
        let mut by_role = HashMap::with_capacity(bindings.len());
        for TensorBinding { role, name, shape, order } in bindings {
            let Some(index) = source.find(name) else {
                return Err(match source.unread_type(name) {
                    Some(kind) => unread_type_error(name, kind),
                    None => Error::load(format!(
                        "tensor {name} is missing from the model; check that all files are there and complete"
                    )),
                });
            };
            let found = &source.tensors()[index];
            if !same_shape(&found.shape, shape) {
                return Err(Error::load(format!(
                    "tensor {name} has shape {:?}, but the model's configuration asks for {shape:?}",
                    found.shape
                )));
            }
            by_role.insert(*role, Bound { index, order: *order });
        }
        let tied_head = !by_role.contains_key(&TensorRole::Head);
        Ok(Self { source, by_role, tied_head })
    }

    /// The matrix with this role. Of a model with tied embeddings, `Head` is the embedding.
    ///
    /// # Errors
    /// The model has none, or the role belongs to a vector.
    pub fn matrix(&self, role: TensorRole) -> Result<MatrixRef<'_>> {
        let bound = self.bound(role)?;
        let info = &self.source.tensors()[bound.index];
        // A file may write a matrix of one row as a vector.
        let columns = *info.shape.last().expect("a bound tensor has the shape of its binding");
        let rows = info.shape.iter().rev().skip(1).product();
        Ok(MatrixRef {
            order: bound.order,
            ..MatrixRef::new(info.dtype, rows, columns, self.source.bytes(bound.index))?
        })
    }

    /// The vector with this role, widened to f32.
    ///
    /// # Errors
    /// The model has none.
    pub fn vector(&self, role: TensorRole) -> Result<Vec<f32>> {
        let bound = self.bound(role)?;
        let info = &self.source.tensors()[bound.index];
        let count = info.shape.iter().product();
        let mut in_file = vec![0.0; count];
        decode_elements(info.dtype, self.source.bytes(bound.index), &mut in_file);
        Ok((0..count).map(|element| in_file[bound.order.file_row(element)]).collect())
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

    fn bound(&self, role: TensorRole) -> Result<Bound> {
        let role = if role == TensorRole::Head && self.tied_head { TensorRole::Embed } else { role };
        self.by_role.get(&role).copied().ok_or_else(|| Error::bug(format!("this model has no tensor for {role:?}")))
    }
}

/// A matrix in a file.
#[derive(Clone, Copy)]
pub struct MatrixRef<'a> {
    /// Format of the elements.
    pub dtype: DType,
    /// Outputs of the projection, or entries of the vocabulary.
    pub rows: usize,
    /// Inputs of the projection.
    pub columns: usize,
    bytes: &'a [u8],
    row_bytes: usize,
    order: RowOrder,
}

impl<'a> MatrixRef<'a> {
    /// A matrix over `bytes`, which hold its rows one after another.
    ///
    /// # Errors
    /// `bytes` does not have the length that type and shape ask for, or a row is not a whole number of blocks.
    pub fn new(dtype: DType, rows: usize, columns: usize, bytes: &'a [u8]) -> Result<Self> {
        if !columns.is_multiple_of(dtype.block_elements()) {
            return Err(Error::load(format!("a {dtype} matrix has {columns} columns, which is not whole blocks")));
        }
        let row_bytes = columns / dtype.block_elements() * dtype.block_bytes();
        if rows.checked_mul(row_bytes) != Some(bytes.len()) {
            return Err(Error::load(format!(
                "a {dtype} matrix of {rows} x {columns} cannot have {} bytes",
                bytes.len()
            )));
        }
        Ok(Self { dtype, rows, columns, bytes, row_bytes, order: RowOrder::Plain })
    }

    /// The file bytes of the row that the model calls `row` (rows of GGUF llama's queries and keys are looked up in
    /// their rotate-half order).
    ///
    /// # Panics
    /// If `row` is not below `rows`.
    pub fn row(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of a matrix with {}", self.rows);
        let start = self.order.file_row(row) * self.row_bytes;
        &self.bytes[start..start + self.row_bytes]
    }

    /// Decodes one row into `out`, which has room for `columns` elements.
    ///
    /// # Panics
    /// If `row` or the length of `out` is out of range.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.columns, "a row has {} columns", self.columns);
        decode_elements(self.dtype, self.row(row), out);
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

/// Decodes consecutive elements; for block formats their number must be a multiple of the block.
fn decode_elements(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    // The largest format has four bytes an element.
    let mut padded = [0; 4 * BLOCK_COLUMNS];
    let mut decoded = [0.0; BLOCK_COLUMNS];
    let block_bytes = BLOCK_COLUMNS / dtype.block_elements() * dtype.block_bytes();
    for (out, bytes) in out.chunks_mut(BLOCK_COLUMNS).zip(bytes.chunks(block_bytes)) {
        padded[..bytes.len()].copy_from_slice(bytes);
        format(dtype).decode(&padded[..block_bytes], &mut decoded);
        out.copy_from_slice(&decoded[..out.len()]);
    }
}

/// Equality up to leading ones, which some writers drop.
fn same_shape(left: &[usize], right: &[usize]) -> bool {
    let significant = |shape: &[usize]| -> Vec<usize> { shape.iter().copied().skip_while(|&n| n == 1).collect() };
    significant(left) == significant(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_are_found_in_rotate_half_order() {
        let order = RowOrder::InterleavedPairs { head_dim: 6, rotary_dim: 4 };
        let rows: Vec<usize> = (0..12).map(|row| order.file_row(row)).collect();
        // Head 0 keeps its pairs (0, 2) and (1, 3) at (0, 1) and (2, 3); 4 and 5 do not rotate.
        assert_eq!(rows, [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]);
    }

    #[test]
    fn vectors_may_end_within_a_block() {
        let values: Vec<f32> = (0..37).map(|n| n as f32 - 7.5).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut decoded = vec![0.0; 37];
        decode_elements(DType::F32, &bytes, &mut decoded);
        assert_eq!(decoded, values);
    }

    #[test]
    fn a_matrix_refuses_bytes_of_another_size() {
        assert!(MatrixRef::new(DType::Q4_0, 2, 32, &[0; 36]).is_ok());
        assert!(MatrixRef::new(DType::Q4_0, 2, 32, &[0; 35]).is_err());
        assert!(MatrixRef::new(DType::Q4_0, 2, 31, &[0; 36]).is_err());
        assert!(MatrixRef::new(DType::F32, usize::MAX, 32, &[]).is_err());
    }

    #[test]
    fn shapes_may_differ_by_leading_ones() {
        assert!(same_shape(&[32], &[1, 32]) && same_shape(&[2, 3], &[2, 3]));
        assert!(!same_shape(&[3, 2], &[2, 3]) && !same_shape(&[32], &[32, 1]));
    }
}
