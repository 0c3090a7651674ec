//! Reads the recorded results under `tests/golden`.

// Each test program uses its own part of this file.
#![allow(dead_code)]

use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};

/// A path below `tests/golden`.
pub fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(relative)
}

/// A JSON file below `tests/golden`.
pub fn json(relative: &str) -> serde_json::Value {
    let path = path(relative);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The ids in a JSON array.
pub fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().expect("an array of ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// A safetensors file.
pub struct Tensors(Vec<u8>);

impl Tensors {
    /// The file at `relative` below `tests/golden`.
    pub fn open(relative: &str) -> Self {
        let path = path(relative);
        Self(std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    /// Names of all tensors.
    pub fn names(&self) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        file.names().into_iter().map(str::to_string).collect()
    }

    /// Shape of a tensor.
    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.view(name).shape().to_vec()
    }

    /// Elements of an F32 or F64 tensor.
    pub fn floats(&self, name: &str) -> Vec<f64> {
        let view = self.view(name);
        match view.dtype() {
            Dtype::F32 => words(view.data()).map(|bytes| f64::from(f32::from_le_bytes(bytes))).collect(),
            Dtype::F64 => words(view.data()).map(f64::from_le_bytes).collect(),
            other => panic!("{name} is {other:?}"),
        }
    }

    /// Elements of an F32 tensor.
    pub fn f32s(&self, name: &str) -> Vec<f32> {
        let view = self.view(name);
        assert_eq!(view.dtype(), Dtype::F32, "{name}");
        words(view.data()).map(f32::from_le_bytes).collect()
    }

    /// Elements of an I32 tensor that holds token ids.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        let view = self.view(name);
        assert_eq!(view.dtype(), Dtype::I32, "{name}");
        words(view.data()).map(u32::from_le_bytes).collect()
    }

    /// Elements of a U8 tensor.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let view = self.view(name);
        assert_eq!(view.dtype(), Dtype::U8, "{name}");
        view.data().to_vec()
    }

    fn view(&self, name: &str) -> safetensors::tensor::TensorView<'_> {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
    bytes.chunks_exact(N).map(|chunk| chunk.try_into().expect("exact chunks"))
}
