//! Where tensors come from: names, shapes, types and bytes of a model's files.

use crate::base::DType;

/// One tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Rows first: `[rows, columns]` for a matrix, `[n]` for a vector, whatever order the file writes.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
}

/// A model's tensors, memory-mapped.
pub trait WeightSource: Send + Sync {
    /// All tensors, ordered by name.
    fn tensors(&self) -> &[TensorInfo];

    /// The bytes of tensor `index` of [`tensors`](Self::tensors), exactly as long as shape and type say
    /// (checked when the files were opened).
    fn bytes(&self, index: usize) -> &[u8];

    /// Index of the tensor called `name`.
    fn find(&self, name: &str) -> Option<usize> {
        self.tensors().binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok()
    }

    /// The file's name for the type of tensor `name`, if it is there but of a type that [`DType`] lacks. Such tensors
    /// are not among [`tensors`](Self::tensors): a model that does not use them can still be opened.
    fn unread_type(&self, name: &str) -> Option<&str> {
        let _ = name; // Files whose reader refuses unknown types have none.
        None
    }
}
