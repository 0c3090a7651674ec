//! Model architectures: one file each, and the table of all. A new one is a file here and a line in [`ALL`].

mod llama;
mod names;
mod qwen2;
mod qwen3;
mod rope_config;
mod uniform;

pub use names::{FileKind, bindings};
pub use rope_config::rope_from_config;

use super::config::Config;
use super::spec::ModelSpec;
use crate::error::{Error, Result};
use crate::weights::gguf::Metadata;
use crate::weights::source::WeightSource;

/// A family of models: what it is called in files and how its configuration reads.
pub trait Architecture: Sync {
    /// Name for people.
    fn family(&self) -> &'static str;

    /// Names in `architectures` of a `config.json`.
    fn classes(&self) -> &'static [&'static str];

    /// Name in `model_type` of a `config.json` and in `general.architecture` of a GGUF file.
    fn model_type(&self) -> &'static str;

    /// Translates a `config.json`.
    ///
    /// # Errors
    /// Something is missing, contradictory or not supported; the message names it.
    fn spec_from_config(&self, config: &Config, tensors: &dyn WeightSource) -> Result<ModelSpec>;

    /// Translates GGUF metadata.
    ///
    /// # Errors
    /// As [`spec_from_config`](Self::spec_from_config).
    fn spec_from_gguf(&self, metadata: Metadata<'_>, tensors: &dyn WeightSource) -> Result<ModelSpec>;

    /// Whether GGUF files keep query and key rows as neighbouring pairs instead of halves.
    fn gguf_interleaves_pairs(&self) -> bool {
        false
    }
}

/// Every architecture that octavo runs.
pub const ALL: [&dyn Architecture; 3] = [&llama::Llama, &qwen2::Qwen2, &qwen3::Qwen3];

/// The architecture that a `config.json` names: by its class, or by `model_type` where no class is given.
///
/// # Errors
/// None or an unsupported one; the message lists the supported ones.
pub fn from_config(config: &Config) -> Result<&'static dyn Architecture> {
    let classes = config.texts("architectures")?;
    if !classes.is_empty() {
        let found = ALL.into_iter().find(|arch| arch.classes().iter().any(|class| classes.contains(class)));
        return found.ok_or_else(|| unsupported(&classes.join(", ")));
    }
    match config.text("model_type")? {
        None => Err(Error::load("the configuration names neither architectures nor model_type")),
        Some(name) => ALL.into_iter().find(|arch| arch.model_type() == name).ok_or_else(|| unsupported(name)),
    }
}

/// The architecture that a GGUF file names.
///
/// # Errors
/// As [`from_config`].
pub fn from_gguf(metadata: Metadata<'_>) -> Result<&'static dyn Architecture> {
    match metadata.text("general.architecture")? {
        None => Err(Error::load("GGUF metadata general.architecture is missing")),
        Some(name) => ALL.into_iter().find(|arch| arch.model_type() == name).ok_or_else(|| unsupported(name)),
    }
}

fn unsupported(name: &str) -> Error {
    let supported: Vec<&str> = ALL.iter().flat_map(|arch| arch.classes()).copied().collect();
    let in_gguf: Vec<&str> = ALL.iter().map(|arch| arch.model_type()).collect();
    Error::load(format!(
        "the architecture {name} is not supported; supported: {} (GGUF: {})",
        supported.join(", "),
        in_gguf.join(", ")
    ))
}
