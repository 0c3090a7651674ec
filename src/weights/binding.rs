//! What a model expects of its files: which tensor holds what, in which shape and order.
//!
//! A role usually is one tensor, but files also join projections (Phi-3, GPT-2), store them transposed (GPT-2), keep
//! `weight - 1` (Gemma) and put experts into one tensor or into many. A binding says so in data, so that whoever reads
//! the weights sees plain matrices only.

use crate::model::spec::TensorRole;

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

/// Which part of a file's tensor a role is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// Rows from `start` on of a matrix with `of` rows, or elements of a longer vector.
    Rows {
        /// First row.
        start: usize,
        /// Rows in the file.
        of: usize,
    },
    /// The tensor is transposed, `[columns, of]`, and columns from `start` on become the rows.
    TransposedColumns {
        /// First column.
        start: usize,
        /// Columns in the file.
        of: usize,
    },
    /// One matrix of a stack, `[count, rows, columns]`.
    Layer {
        /// Which one.
        index: usize,
        /// How many there are.
        count: usize,
    },
}

/// Where one tensor of a model lies. Several bindings of one role are its parts, in order: the experts of a mixture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorBinding {
    /// Its role in the model.
    pub role: TensorRole,
    /// Name of the tensor in the file.
    pub name: String,
    /// `[rows, columns]` of a matrix or `[n]` of a vector, as the model uses it.
    pub shape: Vec<usize>,
    /// Which part of the file's tensor it is.
    pub part: Part,
    /// Order of its rows, or of its elements if it is a vector.
    pub order: RowOrder,
    /// Added to each element of a vector: 1 where files hold `weight - 1`.
    pub offset: i8,
}

impl TensorBinding {
    /// A whole tensor in plain order.
    pub fn new(role: TensorRole, name: impl Into<String>, shape: &[usize]) -> Self {
        let (name, shape) = (name.into(), shape.to_vec());
        Self { role, name, shape, part: Part::Whole, order: RowOrder::Plain, offset: 0 }
    }

    /// The same role under another name.
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The same role as the rows (or elements) from `start` on of the tensor `name`, which has `of` of them.
    pub fn rows_of(self, name: impl Into<String>, start: usize, of: usize) -> Self {
        Self { name: name.into(), part: Part::Rows { start, of }, ..self }
    }

    /// The same role as columns from `start` on of the transposed tensor `name`, which has `of` of them.
    pub fn transposed_columns_of(self, name: impl Into<String>, start: usize, of: usize) -> Self {
        Self { name: name.into(), part: Part::TransposedColumns { start, of }, ..self }
    }

    /// The same role from a file that holds `weight - 1`.
    pub fn plus_one(self) -> Self {
        Self { offset: 1, ..self }
    }

    /// The shape that the tensor must have in its file.
    pub fn file_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        match self.part {
            Part::Whole => {}
            Part::Rows { of, .. } => shape[0] = of,
            Part::TransposedColumns { of, .. } => shape = vec![*shape.last().unwrap_or(&1), of],
            Part::Layer { count, .. } => shape.insert(0, count),
        }
        shape
    }

    /// Rows before the role's first one (elements, if it is a vector), counted through all leading dimensions.
    pub(super) fn first_row(&self) -> usize {
        match self.part {
            Part::Whole | Part::TransposedColumns { .. } => 0,
            Part::Rows { start, .. } => start,
            Part::Layer { index, .. } => index * self.shape[0],
        }
    }
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
    fn the_shape_in_the_file_follows_from_the_part() {
        let plain = TensorBinding::new(TensorRole::Key(0), "k", &[16, 64]);
        assert_eq!(plain.file_shape(), [16, 64]);
        let fused = plain.clone().rows_of("qkv", 64, 96);
        assert_eq!((fused.file_shape(), fused.first_row()), (vec![96, 64], 64));
        let transposed = plain.clone().transposed_columns_of("c_attn", 64, 96);
        assert_eq!(transposed.file_shape(), [64, 96]);
        let expert = TensorBinding { part: Part::Layer { index: 3, count: 8 }, ..plain };
        assert_eq!((expert.file_shape(), expert.first_row()), (vec![8, 16, 64], 48));
        let bias = TensorBinding::new(TensorRole::KeyBias(0), "k", &[16]).rows_of("qkv", 64, 96);
        assert_eq!((bias.file_shape(), bias.first_row()), (vec![96], 64));
    }
}
