//! A matrix in a file: rows of bytes that decode to numbers.

use super::binding::RowOrder;
use crate::base::DType;
use crate::error::{Error, Result};
use crate::quant::decode;
use std::sync::Arc;

/// A matrix in a file, or a transposed copy of one.
#[derive(Clone)]
pub struct MatrixRef<'a> {
    /// Format of the elements.
    pub dtype: DType,
    /// Outputs of the projection, or entries of the vocabulary.
    pub rows: usize,
    /// Inputs of the projection.
    pub columns: usize,
    bytes: Bytes<'a>,
    row_bytes: usize,
    order: RowOrder,
}

#[derive(Clone)]
enum Bytes<'a> {
    File(&'a [u8]),
    /// What a transposed tensor became.
    Copy(Arc<[u8]>),
}

impl<'a> MatrixRef<'a> {
    /// A matrix over `bytes`, which hold its rows one after another.
    ///
    /// # Errors
    /// `bytes` does not have the length that type and shape ask for, or a row is not a whole number of blocks.
    pub fn new(dtype: DType, rows: usize, columns: usize, bytes: &'a [u8]) -> Result<Self> {
        let row_bytes = row_bytes(dtype, columns)?;
        if rows.checked_mul(row_bytes) != Some(bytes.len()) {
            return Err(Error::load(format!(
                "a {dtype} matrix of {rows} x {columns} cannot have {} bytes",
                bytes.len()
            )));
        }
        Ok(Self { dtype, rows, columns, bytes: Bytes::File(bytes), row_bytes, order: RowOrder::Plain })
    }

    /// Copies `rows` columns from `start` on of the matrix `[columns, of]` in `bytes`: they become the rows of a matrix
    /// that is as large as this part and lives as long as its last clone.
    ///
    /// # Errors
    /// The elements come in blocks, or the sizes do not fit together.
    pub fn transposed(
        dtype: DType,
        [rows, columns]: [usize; 2],
        bytes: &[u8],
        start: usize,
        of: usize,
    ) -> Result<Self> {
        if dtype.block_elements() != 1 {
            return Err(Error::load(format!(
                "a transposed matrix of type {dtype} cannot be read, because its blocks would be torn apart; \
                 only unquantised types can be stored so"
            )));
        }
        let (size, row_bytes) = (dtype.block_bytes(), row_bytes(dtype, columns)?);
        let expected = columns.checked_mul(of).and_then(|count| count.checked_mul(size));
        if expected != Some(bytes.len()) || start.checked_add(rows).is_none_or(|end| end > of) {
            return Err(Error::load(format!(
                "columns {start} to {} of a transposed {columns} x {of} {dtype} matrix do not lie in {} bytes",
                start.saturating_add(rows),
                bytes.len()
            )));
        }
        let mut copy = vec![0; rows * row_bytes];
        for (column, file_row) in bytes.chunks_exact((of * size).max(1)).enumerate() {
            for (row, element) in file_row[start * size..][..rows * size].chunks_exact(size).enumerate() {
                copy[row * row_bytes + column * size..][..size].copy_from_slice(element);
            }
        }
        Ok(Self { dtype, rows, columns, bytes: Bytes::Copy(copy.into()), row_bytes, order: RowOrder::Plain })
    }

    /// The same matrix with rows in another order in the file.
    pub(super) fn ordered(self, order: RowOrder) -> Self {
        Self { order, ..self }
    }

    /// The bytes of the row that the model calls `row` (rows of GGUF llama's queries and keys are looked up in their
    /// rotate-half order).
    ///
    /// # Panics
    /// If `row` is not below `rows`.
    pub fn row(&self, row: usize) -> &[u8] {
        assert!(row < self.rows, "row {row} of a matrix with {}", self.rows);
        let bytes = match &self.bytes {
            Bytes::File(bytes) => bytes,
            Bytes::Copy(bytes) => &bytes[..],
        };
        let start = self.order.file_row(row) * self.row_bytes;
        &bytes[start..start + self.row_bytes]
    }

    /// Decodes one row into `out`, which has room for `columns` elements.
    ///
    /// # Panics
    /// If `row` or the length of `out` is out of range.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.columns, "a row has {} columns", self.columns);
        decode(self.dtype, self.row(row), out);
    }
}

/// Bytes of a row of `columns` elements.
///
/// # Errors
/// That is not a whole number of blocks.
pub(super) fn row_bytes(dtype: DType, columns: usize) -> Result<usize> {
    match columns.is_multiple_of(dtype.block_elements()) {
        true => Ok(columns / dtype.block_elements() * dtype.block_bytes()),
        false => Err(Error::load(format!("a {dtype} matrix has {columns} columns, which is not whole blocks"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_refuses_bytes_of_another_size() {
        assert!(MatrixRef::new(DType::Q4_0, 2, 32, &[0; 36]).is_ok());
        assert!(MatrixRef::new(DType::Q4_0, 2, 32, &[0; 35]).is_err());
        assert!(MatrixRef::new(DType::Q4_0, 2, 31, &[0; 36]).is_err());
        assert!(MatrixRef::new(DType::F32, usize::MAX, 32, &[]).is_err());
    }

    #[test]
    fn columns_of_a_transposed_matrix_become_rows() {
        // File [2, 5]: 0 1 2 3 4 / 5 6 7 8 9; columns 1 to 4 are the rows of the model.
        let bytes: Vec<u8> = (0..10).flat_map(|n| half::f16::from_f32(n as f32).to_le_bytes()).collect();
        let matrix = MatrixRef::transposed(DType::F16, [3, 2], &bytes, 1, 5).unwrap();
        let mut row = [0.0; 2];
        for (index, expected) in [[1.0, 6.0], [2.0, 7.0], [3.0, 8.0]].into_iter().enumerate() {
            matrix.decode_row(index, &mut row);
            assert_eq!(row, expected);
        }
        assert!(MatrixRef::transposed(DType::F16, [3, 2], &bytes, 3, 5).is_err());
        assert!(MatrixRef::transposed(DType::F16, [3, 2], &bytes[2..], 1, 5).is_err());
        let message = MatrixRef::transposed(DType::Q8_0, [1, 32], &[0; 34], 0, 1).err().unwrap().to_string();
        assert!(message.contains("q8_0"), "{message}");
    }
}
