//! Typed access to a Hugging Face `config.json` (and its sisters). A null counts as missing.

use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// A JSON object whose getters give `None` for a missing key and an error, which names the key, for one of another type.
#[derive(Clone, Debug)]
pub struct Config {
    values: Map<String, Value>,
}

impl Config {
    /// Parses a file's text.
    ///
    /// # Errors
    /// Not a JSON object.
    pub fn parse(text: &[u8]) -> Result<Self> {
        match serde_json::from_slice(text) {
            Ok(Value::Object(values)) => Ok(Self { values }),
            Ok(_) => Err(Error::load("not a JSON object")),
            Err(error) => Err(Error::load(format!("not valid JSON: {error}"))),
        }
    }

    /// Reads and parses a file; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read or parsed.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        match std::fs::read(path) {
            Ok(text) => Self::parse(&text).map(Some).map_err(|error| error.context(path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::load(format!("cannot read {}: {error}", path.display()))),
        }
    }

    /// The value itself.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// Whether the key is there, even if its value is null: some classes assume a number where nothing is said, and none
    /// where null is.
    pub fn mentions(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// A count or size.
    ///
    /// # Errors
    /// Not a whole number, or negative.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        self.get(key, "a whole number", |value| usize::try_from(value.as_u64()?).ok())
    }

    /// A count or size that must be there.
    ///
    /// # Errors
    /// As [`size`](Self::size), or missing.
    pub fn required_size(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| Error::load(format!("{key} is missing")))
    }

    /// A number.
    ///
    /// # Errors
    /// Another type.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.get(key, "a number", Value::as_f64)
    }

    /// A truth value.
    ///
    /// # Errors
    /// Another type.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "true or false", Value::as_bool)
    }

    /// A text.
    ///
    /// # Errors
    /// Another type.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.get(key, "a text", Value::as_str)
    }

    /// A list of texts; empty if missing.
    ///
    /// # Errors
    /// Another type.
    pub fn texts(&self, key: &str) -> Result<Vec<&str>> {
        let texts = self.get(key, "a list of texts", |value| value.as_array()?.iter().map(Value::as_str).collect())?;
        Ok(texts.unwrap_or_default())
    }

    /// A list of numbers.
    ///
    /// # Errors
    /// Another type.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.get(key, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    /// A list of counts, sizes or indices.
    ///
    /// # Errors
    /// Another type, or a negative number among them.
    pub fn sizes(&self, key: &str) -> Result<Option<Vec<usize>>> {
        let size = |value: &Value| usize::try_from(value.as_u64()?).ok();
        self.get(key, "a list of whole numbers", |value| value.as_array()?.iter().map(size).collect())
    }

    /// The same object without some keys.
    pub fn without(&self, keys: &[&str]) -> Self {
        let mut values = self.values.clone();
        values.retain(|key, _| !keys.contains(&key.as_str()));
        Self { values }
    }

    /// An object.
    ///
    /// # Errors
    /// Another type.
    pub fn object(&self, key: &str) -> Result<Option<Self>> {
        self.get(key, "an object", |value| Some(Self { values: value.as_object()?.clone() }))
    }

    fn get<'a, T>(&'a self, key: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(value) => Ok(Some(value)),
                None => {
                    // Long values would bury the message.
                    let shown: String = value.to_string().chars().take(60).collect();
                    Err(Error::load(format!("{key} should be {expected}, but is {shown}")))
                }
            },
        }
    }
}
