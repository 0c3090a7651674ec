//! Safetensors files: one, or several with an index. Header parsing and its checks are the `safetensors` crate's.

use super::mapping::FileBytes;
use super::source::{TensorInfo, WeightSource};
use crate::base::DType;
use crate::error::{Error, Result};
use ::safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

/// Name of the only file of a small model.
const SINGLE: &str = "model.safetensors";
/// Name of the list that says which file of a large model holds which tensor.
const INDEX: &str = "model.safetensors.index.json";

/// The tensors of one or more safetensors files.
pub struct SafetensorsFiles {
    files: Vec<FileBytes>,
    infos: Vec<TensorInfo>,
    /// File and bytes of each of `infos`.
    places: Vec<(usize, Range<usize>)>,
    /// Tensors of other types: name to type.
    unread: HashMap<String, String>,
}

impl SafetensorsFiles {
    /// Maps the weights of a model folder.
    ///
    /// # Errors
    /// There are none, or one is damaged, or an index and its files disagree.
    pub fn open_folder(folder: &Path) -> Result<Self> {
        if folder.join(SINGLE).exists() {
            let bytes = FileBytes::map(&folder.join(SINGLE))?;
            return Self::new(vec![(SINGLE.to_owned(), bytes)], None);
        }
        let index_path = folder.join(INDEX);
        if !index_path.exists() {
            return Err(Error::load(format!(
                "{} holds neither {SINGLE} nor {INDEX}; octavo reads safetensors and GGUF files, so convert other \
                 weights first",
                folder.display()
            )));
        }
        let text = std::fs::read(&index_path)
            .map_err(|error| Error::load(format!("cannot read {}: {error}", index_path.display())))?;
        let weight_map = parse_index(&text).map_err(|error| error.context(index_path.display()))?;
        let mut files = Vec::new();
        let mut names: Vec<&String> = weight_map.values().collect();
        names.sort();
        names.dedup();
        for name in names {
            // An index must not make us open files elsewhere.
            if Path::new(name).file_name().is_none_or(|file| file != name.as_str()) {
                return Err(Error::load(format!("{INDEX} names {name:?}, which is not a file of the model's folder")));
            }
            files.push((name.clone(), FileBytes::map(&folder.join(name))?));
        }
        Self::new(files, Some(&weight_map))
    }

    /// Reads `files` (name for messages, content). With `weight_map` (tensor to file), exactly its tensors are taken.
    ///
    /// # Errors
    /// A file is damaged, lacks a tensor that the map places in it, or two files hold the same tensor without a map.
    pub fn new(files: Vec<(String, FileBytes)>, weight_map: Option<&BTreeMap<String, String>>) -> Result<Self> {
        let mut found: BTreeMap<String, (TensorInfo, usize, Range<usize>)> = BTreeMap::new();
        let mut unread = HashMap::new();
        for (file, (file_name, bytes)) in files.iter().enumerate() {
            for (name, dtype, shape, range) in read_header(bytes).map_err(|error| error.context(file_name))? {
                if weight_map.is_some_and(|map| map.get(&name) != Some(file_name)) {
                    continue;
                }
                let Some(known) = known_type(dtype) else {
                    unread.insert(name, format!("{dtype:?}"));
                    continue;
                };
                let info = TensorInfo { name: name.clone(), shape, dtype: known };
                if found.insert(name, (info, file, range)).is_some() {
                    return Err(Error::load(format!("{file_name} repeats a tensor of another file")));
                }
            }
        }
        let present = |name: &String| found.contains_key(name) || unread.contains_key(name);
        if let Some((name, file)) = weight_map.into_iter().flatten().find(|(name, _)| !present(name)) {
            return Err(Error::load(format!(
                "{INDEX} places tensor {name} in {file}, but it is not there; download the model again"
            )));
        }
        let mut source = Self { files: Vec::new(), infos: Vec::new(), places: Vec::new(), unread };
        for (info, file, range) in found.into_values() {
            source.infos.push(info);
            source.places.push((file, range));
        }
        source.files = files.into_iter().map(|(_, bytes)| bytes).collect();
        Ok(source)
    }
}

impl WeightSource for SafetensorsFiles {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn bytes(&self, index: usize) -> &[u8] {
        let (file, range) = &self.places[index];
        &self.files[*file][range.clone()]
    }

    fn unread_type(&self, name: &str) -> Option<&str> {
        self.unread.get(name).map(String::as_str)
    }
}

type HeaderEntry = (String, Dtype, Vec<usize>, Range<usize>);

/// The tensors of one file, with ranges that are counted from its start.
fn read_header(bytes: &[u8]) -> Result<Vec<HeaderEntry>> {
    // The crate checks that the tensors fill the rest of the file without gaps or overlaps.
    let (header_bytes, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| {
        Error::load(format!("not a whole safetensors file ({error}); was its download interrupted?"))
    })?;
    let data_start = size_of::<u64>() + header_bytes;
    let entry = |(name, info): (String, &::safetensors::tensor::TensorInfo)| {
        let (start, end) = info.data_offsets;
        (name, info.dtype, info.shape.clone(), data_start + start..data_start + end)
    };
    Ok(metadata.tensors().into_iter().map(entry).collect())
}

fn parse_index(text: &[u8]) -> Result<BTreeMap<String, String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index: Index =
        serde_json::from_slice(text).map_err(|error| Error::load(format!("not a weight index: {error}")))?;
    match index.weight_map.is_empty() {
        true => Err(Error::load("the weight map is empty")),
        false => Ok(index.weight_map),
    }
}

fn known_type(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        _ => None,
    }
}
