//! Parses the header of a GGUF file into places: strings and arrays stay where they are until they are asked for.
//!
//! Layout (all little-endian): magic, version u32, tensor count u64, pair count u64; pairs of key, type u32 and value;
//! tensors of name, dimension count u32, dimensions u64 (innermost first), type u32 and offset u64; padding to
//! `general.alignment`; tensor data. A string is a length u64 and its bytes. Source: the GGUF specification of ggml.

use super::super::source::TensorInfo;
use super::super::tensors::unread_type_error;
use super::types;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;

/// Alignment of tensor data in files that do not say.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Most dimensions of a tensor in ggml.
const MAX_DIMENSIONS: u32 = 4;

/// A parsed header.
pub struct Header {
    /// Metadata by key.
    pub values: HashMap<String, Value>,
    /// Tensors ordered by name, with their bytes in the file.
    pub tensors: Vec<(TensorInfo, Range<usize>)>,
}

/// One metadata value. Ranges are bytes of the file.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Flag(bool),
    /// Not yet checked to be UTF-8.
    Text(Range<usize>),
    /// `count` elements; known to lie within the file.
    Array {
        kind: Kind,
        count: usize,
        bytes: Range<usize>,
    },
}

/// The types of metadata values, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    fn from_number(number: u32) -> Option<Self> {
        const ALL: [Kind; 13] = [
            Kind::U8,
            Kind::I8,
            Kind::U16,
            Kind::I16,
            Kind::U32,
            Kind::I32,
            Kind::F32,
            Kind::Bool,
            Kind::Text,
            Kind::Array,
            Kind::U64,
            Kind::I64,
            Kind::F64,
        ];
        ALL.get(number as usize).copied()
    }

    /// Bytes of one value, or the fewest for kinds of variable size.
    fn least_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Text => 8,
            Self::Array => 12,
        }
    }
}

impl Header {
    /// Parses the header of the file whose whole content is `bytes`.
    ///
    /// # Errors
    /// As for [`GgufFile::new`](super::GgufFile::new).
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader { bytes, at: 0 };
        if !bytes.starts_with(b"GGUF") {
            return Err(Error::load("not a GGUF file (it does not start with \"GGUF\")"));
        }
        reader.take(4)?;
        match reader.u32()? {
            2 | 3 => {}
            version if matches!(version.swap_bytes(), 1..=3) => {
                return Err(Error::load("a big-endian GGUF file, which octavo does not read; convert it again"));
            }
            version => {
                return Err(Error::load(format!(
                    "GGUF version {version} is not supported (2 and 3 are); convert it again"
                )));
            }
        }
        // Fewest bytes of a tensor: name 8 + 1, dimension count 4, one dimension 8, type 4, offset 8.
        let tensor_count = reader.count(33, "tensors")?;
        // Fewest bytes of a pair: key 8 + 1, type 4, value 1. Tensors come later, so this bound is loose but sound.
        let pair_count = reader.count(14, "metadata pairs")?;

        let mut values = HashMap::new();
        for _ in 0..pair_count {
            let key = reader.name("metadata key")?;
            let kind = reader.kind(&key)?;
            let value = reader.value(kind, &key)?;
            if values.contains_key(&key) {
                return Err(reader.damaged(format!("metadata key {key} occurs twice")));
            }
            values.insert(key, value);
        }

        let alignment = match values.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(Value::Unsigned(alignment)) if alignment.is_power_of_two() => *alignment,
            Some(other) => return Err(reader.damaged(format!("general.alignment is {other:?}, not a power of two"))),
        };
        let mut entries = Vec::new();
        for _ in 0..tensor_count {
            entries.push(reader.tensor(alignment)?);
        }
        let tensors = place(entries, reader.at as u64, alignment, bytes.len())?;
        Ok(Self { values, tensors })
    }
}

/// Turns offsets into ranges of the file and checks that no two tensors share bytes or a name.
fn place(
    entries: Vec<(TensorInfo, u64, u64)>,
    header_end: u64,
    alignment: u64,
    file_bytes: usize,
) -> Result<Vec<(TensorInfo, Range<usize>)>> {
    let data_start = header_end.checked_next_multiple_of(alignment);
    let mut tensors = Vec::with_capacity(entries.len());
    for (info, offset, size) in entries {
        let start = data_start.and_then(|start| start.checked_add(offset));
        match start.and_then(|start| Some((start, start.checked_add(size)?))) {
            Some((start, end)) if end <= file_bytes as u64 => tensors.push((info, start as usize..end as usize)),
            _ => {
                return Err(Error::load(format!(
                    "the GGUF file is cut short: tensor {} lies beyond its {file_bytes} bytes; download it again",
                    info.name
                )));
            }
        }
    }
    tensors.sort_by_key(|(_, range)| range.start);
    if let Some(pair) = tensors.windows(2).find(|pair| pair[1].1.start < pair[0].1.end) {
        return Err(Error::load(format!("damaged GGUF file: {} and {} overlap", pair[0].0.name, pair[1].0.name)));
    }
    tensors.sort_by(|(left, _), (right, _)| left.name.cmp(&right.name));
    match tensors.windows(2).find(|pair| pair[0].0.name == pair[1].0.name) {
        Some(pair) => Err(Error::load(format!("damaged GGUF file: there are two tensors called {}", pair[0].0.name))),
        None => Ok(tensors),
    }
}

/// Walks over the header; never beyond the end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        match self.bytes[self.at..].get(..count) {
            Some(taken) => {
                self.at += count;
                Ok(taken)
            }
            None => Err(Error::load(format!(
                "the GGUF header is cut short or damaged: {count} bytes at {} do not fit the file's {}; download it \
                 again",
                self.at,
                self.bytes.len()
            ))),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("take gives exactly N bytes"))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number of items of at least `least_bytes` each, which the rest of the file must have room for.
    fn count(&mut self, least_bytes: usize, what: impl std::fmt::Display) -> Result<usize> {
        let count = self.u64()?;
        let room = (self.bytes.len() - self.at) / least_bytes;
        match usize::try_from(count).ok().filter(|count| *count <= room) {
            Some(count) => Ok(count),
            None => Err(self.damaged(format!("it claims {count} {what}, but has room for {room} at most"))),
        }
    }

    fn text(&mut self) -> Result<Range<usize>> {
        let length = self.count(1, "bytes of text")?;
        let start = self.at;
        self.take(length)?;
        Ok(start..self.at)
    }

    fn name(&mut self, what: &str) -> Result<String> {
        let range = self.text()?;
        match std::str::from_utf8(&self.bytes[range]) {
            Ok("") => Err(self.damaged(format!("a {what} is empty"))),
            Ok(name) => Ok(name.to_owned()),
            Err(_) => Err(self.damaged(format!("a {what} is not UTF-8"))),
        }
    }

    fn kind(&mut self, key: &str) -> Result<Kind> {
        let number = self.u32()?;
        Kind::from_number(number).ok_or_else(|| self.damaged(format!("{key} has the unknown type {number}")))
    }

    fn value(&mut self, kind: Kind, key: &str) -> Result<Value> {
        Ok(match kind {
            Kind::U8 => Value::Unsigned(self.array::<1>()?[0].into()),
            Kind::I8 => Value::Signed((self.array::<1>()?[0] as i8).into()),
            Kind::U16 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            Kind::I16 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            Kind::U32 => Value::Unsigned(self.u32()?.into()),
            Kind::I32 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            Kind::U64 => Value::Unsigned(self.u64()?),
            Kind::I64 => Value::Signed(i64::from_le_bytes(self.array()?)),
            Kind::F32 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            Kind::F64 => Value::Float(f64::from_le_bytes(self.array()?)),
            Kind::Bool => match self.array::<1>()?[0] {
                0 => Value::Flag(false),
                1 => Value::Flag(true),
                other => return Err(self.damaged(format!("{key} is {other}, neither true nor false"))),
            },
            Kind::Text => Value::Text(self.text()?),
            Kind::Array => {
                let kind = self.kind(key)?;
                if kind == Kind::Array {
                    return Err(self.damaged(format!("{key} is an array of arrays, which no reader supports")));
                }
                let count = self.count(kind.least_bytes(), format_args!("elements of {key}"))?;
                let start = self.at;
                match kind {
                    Kind::Text => {
                        for _ in 0..count {
                            self.text()?;
                        }
                    }
                    _ => drop(self.take(count * kind.least_bytes())?),
                }
                Value::Array { kind, count, bytes: start..self.at }
            }
        })
    }

    /// One tensor: what it is, its offset in the data and its size.
    fn tensor(&mut self, alignment: u64) -> Result<(TensorInfo, u64, u64)> {
        let name = self.name("tensor name")?;
        let dimension_count = self.u32()?;
        if !(1..=MAX_DIMENSIONS).contains(&dimension_count) {
            return Err(self.damaged(format!("tensor {name} has {dimension_count} dimensions")));
        }
        let mut dimensions = Vec::with_capacity(MAX_DIMENSIONS as usize);
        for _ in 0..dimension_count {
            dimensions.push(self.u64()?);
        }
        let number = self.u32()?;
        let dtype = types::known(number).ok_or_else(|| unread_type_error(&name, &types::name(number)))?;
        let offset = self.u64()?;

        let block_elements = dtype.block_elements() as u64;
        let size = dimensions.iter().try_fold(1, |count: u64, &n| count.checked_mul(n)).and_then(|elements| {
            let whole_blocks = elements > 0 && dimensions[0] % block_elements == 0;
            (elements / block_elements).checked_mul(dtype.block_bytes() as u64).filter(|_| whole_blocks)
        });
        let Some(size) = size else {
            return Err(self.damaged(format!("tensor {name} cannot have the dimensions {dimensions:?} in {dtype}")));
        };
        if offset % alignment != 0 {
            return Err(self.damaged(format!("tensor {name} starts at {offset}, not at a multiple of {alignment}")));
        }
        // The file lists the innermost dimension first. Sizes beyond usize cannot lie in the file, so saturating is
        // only for the message of `place`.
        let shape = dimensions.iter().rev().map(|&n| usize::try_from(n).unwrap_or(usize::MAX)).collect();
        Ok((TensorInfo { name, shape, dtype }, offset, size))
    }

    fn damaged(&self, what: impl std::fmt::Display) -> Error {
        Error::load(format!("damaged GGUF file: {what} (near byte {})", self.at))
    }
}
