//! Model architectures: one file each, and the table of all. A new one is a file here and a line in [`ALL`].
//!
//! # Adding a family
//!
//! This is all of `olmo2.rs`, which makes a Llama into an OLMo 2:
//!
//! ```ignore
#![doc = include_str!("olmo2.rs")]
//! ```
//!
//! 1. *What it is called*: a name for people, the class in `architectures` and the `model_type` of a `config.json`, and
//!    [`gguf_name`](Architecture::gguf_name) where ggml spells it differently.
//! 2. *How it differs*: `UniformDecoder` reads what decoders of this line have in common (sizes, heads, biases, rotary
//!    embedding, tied head), with the defaults that the class has for settings that files leave out. The family then changes
//!    the [`ModelSpec`]: here norms move behind attention and MLP, and queries and keys get a norm over the whole row. Both
//!    kinds of files end in one function, so that a folder and a GGUF file of one model give equal specs.
//! 3. *Where its tensors are*: nothing to do here, since the usual names (`names.rs`) fit. Families that join or transpose
//!    tensors, or have other names, change the binding of a role in [`place`](Architecture::place): see `phi3.rs` for
//!    fused projections, `gpt2.rs` for transposed ones, `gemma.rs` for `1 + weight`.
//!
//! A setting that changes results and cannot be honoured is refused by name: a wrong token is worse than an error.
//!
//! If [`ModelSpec`] can say what the family does, this is all: the reference runs it, and so do the kernels. What is left are
//! tests: a folder with random weights and recorded logits under `tests/golden`, a line in `tests/reference.rs` and in
//! `tests/gguf_families.rs`.

mod gemma;
mod gpt2;
mod llama;
mod mistral;
mod names;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod rope_config;
mod rope_gguf;
mod smollm3;
mod uniform;
mod windows;

pub use names::{FileKind, bindings};
pub use rope_config::rope_from_config;

use super::config::Config;
use super::spec::ModelSpec;
use crate::error::{Error, Result};
use crate::weights::gguf::Metadata;
use crate::weights::source::WeightSource;
use crate::weights::tensors::TensorBinding;

/// A family of models: what it is called in files and how its configuration reads.
pub trait Architecture: Sync {
    /// Name for people.
    fn family(&self) -> &'static str;

    /// Names in `architectures` of a `config.json`.
    fn classes(&self) -> &'static [&'static str];

    /// Name in `model_type` of a `config.json`.
    fn model_type(&self) -> &'static str;

    /// Name in `general.architecture` of a GGUF file.
    fn gguf_name(&self) -> &'static str {
        self.model_type()
    }

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

    /// Where a tensor lies in the files of this family. `usual` is the binding with the usual name and the shape that the
    /// spec asks for.
    fn place(&self, usual: TensorBinding, spec: &ModelSpec, kind: FileKind, files: &dyn WeightSource) -> TensorBinding {
        let _ = (spec, kind, files);
        usual
    }
}

/// Every architecture that octavo runs. Of those with one GGUF name, the first reads the files.
pub const ALL: [&dyn Architecture; 11] = [
    &llama::Llama,
    &mistral::Mistral,
    &qwen2::Qwen2,
    &qwen3::Qwen3,
    &qwen3_moe::Qwen3Moe,
    &gemma::Gemma2,
    &gemma::Gemma3,
    &phi3::Phi3,
    &olmo2::Olmo2,
    &smollm3::SmolLm3,
    &gpt2::Gpt2,
];

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
        Some(name) => ALL.into_iter().find(|arch| arch.gguf_name() == name).ok_or_else(|| unsupported(name)),
    }
}

fn unsupported(name: &str) -> Error {
    let supported: Vec<&str> = ALL.iter().flat_map(|arch| arch.classes()).copied().collect();
    let mut in_gguf: Vec<&str> = ALL.iter().map(|arch| arch.gguf_name()).collect();
    in_gguf.dedup();
    Error::load(format!(
        "the architecture {name} is not supported; supported: {} (GGUF: {})",
        supported.join(", "),
        in_gguf.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_families_claim_one_class() {
        let mut classes: Vec<&str> = ALL.iter().flat_map(|arch| arch.classes()).copied().collect();
        let count = classes.len();
        classes.sort();
        classes.dedup();
        assert_eq!(classes.len(), count);
    }
}
