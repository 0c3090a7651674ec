//! GGUF files, versions 2 and 3: metadata and tensors in one file.
//!
//! The parser trusts nothing: every length is checked against the bytes that are left before anything is allocated, so
//! memory stays within a small multiple of the file's own header, and a damaged file is an error that says where.

mod header;
mod metadata;
mod types;

pub use metadata::Metadata;

use super::mapping::FileBytes;
use super::source::{TensorInfo, WeightSource};
use crate::error::Result;
use header::Header;
use std::ops::Range;

/// One open GGUF file.
pub struct GgufFile {
    bytes: FileBytes,
    header: Header,
    infos: Vec<TensorInfo>,
    /// Bytes of each of `infos` in the file.
    ranges: Vec<Range<usize>>,
}

impl GgufFile {
    /// Parses the header.
    ///
    /// # Errors
    /// The file is damaged, or has another version or a tensor type that octavo does not read.
    pub fn new(bytes: FileBytes) -> Result<Self> {
        let mut header = Header::parse(&bytes)?;
        let (infos, ranges) = std::mem::take(&mut header.tensors).into_iter().unzip();
        Ok(Self { bytes, header, infos, ranges })
    }

    /// The key-value part.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(&self.bytes, &self.header.values)
    }
}

impl WeightSource for GgufFile {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn bytes(&self, index: usize) -> &[u8] {
        &self.bytes[self.ranges[index].clone()]
    }
}
