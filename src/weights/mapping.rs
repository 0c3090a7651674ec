//! Bytes of a model file: mapped from disk, or handed over in memory.

use crate::error::{Error, Result};
use std::fs::File;
use std::ops::Deref;
use std::path::Path;

/// The content of one file, readable as a slice.
pub enum FileBytes {
    /// A read-only map: pages come from disk when they are first touched.
    Mapped(memmap2::Mmap),
    /// Owned memory, for models that do not lie in a file.
    Owned(Vec<u8>),
}

impl FileBytes {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// The file cannot be opened, is not a regular file or is empty.
    pub fn map(path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| Error::load(format!("cannot read {}: {error}", path.display()));
        // Before it is opened, for opening a pipe waits for a writer.
        let metadata = std::fs::metadata(path).map_err(failed)?;
        if !metadata.is_file() {
            return Err(Error::load(format!("{} is not a file", path.display())));
        }
        if metadata.len() == 0 {
            return Err(Error::load(format!("{} is empty; was its download interrupted?", path.display())));
        }
        let file = File::open(path).map_err(failed)?;
        // SAFETY: the map is read-only and private to this value. Another process that rewrites the file would change
        // the bytes under us; model files are not edited in place, and every reader here copies what it decodes, so
        // such an edit gives wrong numbers but breaks no Rust invariant (bytes have no invalid values). One that shortens the
        // file ends the process.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(failed)?;
        Ok(Self::Mapped(map))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}
