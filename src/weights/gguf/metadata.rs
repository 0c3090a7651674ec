//! Typed access to the metadata of a GGUF file.

use super::header::{Kind, Value};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;

/// The key-value pairs of one file. Getters give `None` for a missing key and an error for one of another type.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    bytes: &'a [u8],
    values: &'a HashMap<String, Value>,
}

impl<'a> Metadata<'a> {
    pub(super) fn new(bytes: &'a [u8], values: &'a HashMap<String, Value>) -> Self {
        Self { bytes, values }
    }

    /// Whether the key is there.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// A text.
    ///
    /// # Errors
    /// Another type, or not UTF-8.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Text(range)) => self.utf8(key, range.clone()).map(Some),
            Some(other) => Err(mismatch(key, "a text", other)),
        }
    }

    /// A whole number, not negative.
    ///
    /// # Errors
    /// Another type or range.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(value)) => Ok(Some(*value)),
            Some(Value::Signed(value)) if *value >= 0 => Ok(Some(*value as u64)),
            Some(other) => Err(mismatch(key, "a whole number", other)),
        }
    }

    /// A number.
    ///
    /// # Errors
    /// Another type.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Float(value)) => Ok(Some(*value)),
            Some(Value::Unsigned(value)) => Ok(Some(*value as f64)),
            Some(Value::Signed(value)) => Ok(Some(*value as f64)),
            Some(other) => Err(mismatch(key, "a number", other)),
        }
    }

    /// A truth value.
    ///
    /// # Errors
    /// Another type.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Flag(value)) => Ok(Some(*value)),
            Some(other) => Err(mismatch(key, "true or false", other)),
        }
    }

    /// A list of texts; empty if the key is missing.
    ///
    /// # Errors
    /// Another type, or not UTF-8.
    pub fn texts(&self, key: &str) -> Result<Vec<String>> {
        let Some(value) = self.values.get(key) else { return Ok(Vec::new()) };
        let Value::Array { kind: Kind::Text, count, bytes } = value else {
            return Err(mismatch(key, "a list of texts", value));
        };
        let mut at = bytes.start;
        let mut texts = Vec::with_capacity(*count);
        for _ in 0..*count {
            let length = self.bytes[at..at + 8].try_into().expect("the slice has eight bytes");
            // The header parser walked over these very lengths.
            let start = at + 8;
            at = start + u64::from_le_bytes(length) as usize;
            texts.push(self.utf8(key, start..at)?.to_owned());
        }
        Ok(texts)
    }

    /// A list of 32-bit signed numbers; empty if the key is missing.
    ///
    /// # Errors
    /// Another type.
    pub fn integers(&self, key: &str) -> Result<Vec<i32>> {
        // Some writers store small positive numbers as unsigned ones; those that matter here fit both.
        self.words(key, &[Kind::I32, Kind::U32], "a list of 32-bit numbers", i32::from_le_bytes)
    }

    /// A list of f32; empty if the key is missing.
    ///
    /// # Errors
    /// Another type.
    pub fn floats(&self, key: &str) -> Result<Vec<f32>> {
        self.words(key, &[Kind::F32], "a list of f32", f32::from_le_bytes)
    }

    /// A list of bytes, signed or not; empty if the key is missing.
    ///
    /// # Errors
    /// Another type.
    pub fn bytes(&self, key: &str) -> Result<&'a [u8]> {
        match self.values.get(key) {
            None => Ok(&[]),
            Some(Value::Array { kind: Kind::U8 | Kind::I8, bytes, .. }) => Ok(&self.bytes[bytes.clone()]),
            Some(other) => Err(mismatch(key, "a list of bytes", other)),
        }
    }

    /// A list of truth values; `None` if the key is missing or holds no list.
    ///
    /// # Errors
    /// A list of another type.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>> {
        match self.values.get(key) {
            Some(Value::Array { kind: Kind::Bool, bytes, .. }) => {
                Ok(Some(self.bytes[bytes.clone()].iter().map(|&flag| flag != 0).collect()))
            }
            Some(other @ Value::Array { .. }) => Err(mismatch(key, "a list of truth values", other)),
            _ => Ok(None),
        }
    }

    fn words<T>(&self, key: &str, kinds: &[Kind], expected: &str, read: fn([u8; 4]) -> T) -> Result<Vec<T>> {
        match self.values.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array { kind, bytes, .. }) if kinds.contains(kind) => {
                let word = |bytes: &[u8]| read(bytes.try_into().expect("chunks have four bytes"));
                Ok(self.bytes[bytes.clone()].chunks_exact(4).map(word).collect())
            }
            Some(other) => Err(mismatch(key, expected, other)),
        }
    }

    fn utf8(&self, key: &str, range: Range<usize>) -> Result<&'a str> {
        std::str::from_utf8(&self.bytes[range])
            .map_err(|_| Error::load(format!("GGUF metadata {key} holds text that is not UTF-8")))
    }
}

fn mismatch(key: &str, expected: &str, found: &Value) -> Error {
    let found = match found {
        Value::Unsigned(value) => value.to_string(),
        Value::Signed(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Flag(value) => value.to_string(),
        Value::Text(_) => "a text".to_owned(),
        Value::Array { kind, count, .. } => format!("a list of {count} values of type {kind:?}"),
    };
    Error::load(format!("GGUF metadata {key} should be {expected}, but is {found}"))
}
