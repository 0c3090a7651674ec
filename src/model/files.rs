//! Opens a model: a Hugging Face folder or a GGUF file becomes a spec, checked tensors and text files.

use super::arch::{self, FileKind, bindings};
use super::config::Config;
pub use super::generation::GenerationDefaults;
use super::spec::{LayerSpec, MlpKind, ModelSpec};
use super::text_files;
use crate::base::TokenId;
use crate::error::{Error, Result};
use crate::text::files::{TextFiles, TokenizerFile};
use crate::weights::FileBytes;
use crate::weights::gguf::{GgufFile, Metadata};
use crate::weights::safetensors::SafetensorsFiles;
use crate::weights::source::WeightSource;
use crate::weights::tensors::ModelTensors;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// A model on disk, ready to be loaded.
pub struct ModelFiles {
    /// What it is made of.
    pub spec: ModelSpec,
    /// Its weights, checked against the spec.
    pub tensors: ModelTensors,
    /// Its vocabulary and chat template, as found.
    pub text: TextFiles,
    /// Tokens that end an output. All below `spec.vocab_size`; may be empty.
    pub end_tokens: Vec<TokenId>,
    /// How its makers suggest to sample.
    pub defaults: GenerationDefaults,
    /// Name of the folder or file, for people.
    pub source_name: String,
    /// Hash of the configuration and samples of every tensor, the same wherever the files lie.
    pub identity: String,
}

impl ModelFiles {
    /// Opens a folder with `config.json` and safetensors, a `.gguf` file, or a folder with exactly one such file.
    ///
    /// Weights are mapped, not read. Headers, shapes and the configuration are checked here, so that loading onto a
    /// device fails for lack of memory only.
    ///
    /// # Errors
    /// Says what is missing, damaged or not supported.
    pub fn open(path: &Path) -> Result<Self> {
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        let shown = path.display();
        let opened = if !path.exists() {
            Err(Error::load("there is no such folder or file; give a model folder or a .gguf file"))
        } else if !path.is_dir() {
            open_file(path, name)
        } else if path.join("config.json").exists() {
            open_folder(path, name)
        } else {
            match &gguf_files(path)?[..] {
                [] => Err(Error::load("the folder holds neither config.json nor a .gguf file")),
                [only] => Self::from_gguf(FileBytes::map(only)?, name),
                several => {
                    Err(Error::load(format!("the folder holds {} .gguf files; name one of them", several.len())))
                }
            }
        };
        opened.map_err(|error| error.context(shown))
    }

    /// Opens the content of a GGUF file, wherever it comes from.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_gguf(bytes: FileBytes, source_name: String) -> Result<Self> {
        let file = GgufFile::new(bytes)?;
        let metadata = file.metadata();
        if metadata.unsigned("split.count")?.is_some_and(|count| count > 1) {
            return Err(Error::load("this is one part of a split GGUF file; join the parts with gguf-split --merge"));
        }
        let arch = arch::from_gguf(metadata)?;
        let spec = arch.spec_from_gguf(metadata, &file)?;
        let text = text_files::from_gguf(metadata)?;
        let token_count = match &text.tokenizer {
            Some(TokenizerFile::Gguf(vocab)) => vocab.tokens.len(),
            _ => 0,
        };
        if token_count > spec.vocab_size {
            return Err(Error::load(format!(
                "the vocabulary has {token_count} tokens, but the embedding only {} rows",
                spec.vocab_size
            )));
        }
        let end_tokens = match &text.tokenizer {
            Some(TokenizerFile::Gguf(vocab)) => vocab.end_token_ids.clone(),
            _ => end_tokens_of_gguf(metadata, spec.vocab_size)?,
        };
        let defaults = GenerationDefaults::from_gguf(metadata)?;
        check_counts(&spec, &file)?;
        let bindings = bindings(arch, &spec, FileKind::Gguf, &file);
        let tensors = ModelTensors::bind(Box::new(file), &bindings)?;
        let identity = identity(&spec, tensors.source());
        Ok(Self { spec, tensors, text, end_tokens, defaults, source_name, identity })
    }

    /// Joins a parsed configuration, the weights it belongs to and what was said about generation and text.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_parts(
        config: &Config,
        generation: Option<&Config>,
        weights: SafetensorsFiles,
        text: TextFiles,
        source_name: String,
    ) -> Result<Self> {
        let in_config = |error: Error| error.context("config.json");
        let arch = arch::from_config(config).map_err(in_config)?;
        let spec = arch.spec_from_config(config, &weights).map_err(in_config)?;
        check_counts(&spec, &weights)?;
        let bindings = bindings(arch, &spec, FileKind::HuggingFace, &weights);
        let tensors = ModelTensors::bind(Box::new(weights), &bindings)?;
        let in_generation = |error: Error| error.context("generation_config.json");
        let listed = generation.map(|file| token_ids(file, "eos_token_id").map_err(in_generation)).transpose()?;
        let mut end_tokens = match listed {
            Some(ids) if !ids.is_empty() => ids,
            _ => token_ids(config, "eos_token_id").map_err(in_config)?,
        };
        end_tokens.retain(|&id| (id as usize) < spec.vocab_size);
        let defaults =
            generation.map(GenerationDefaults::from_config).transpose().map_err(in_generation)?.unwrap_or_default();
        let identity = identity(&spec, tensors.source());
        Ok(Self { spec, tensors, text, end_tokens, defaults, source_name, identity })
    }
}

fn open_folder(folder: &Path, name: String) -> Result<ModelFiles> {
    let config = Config::read(&folder.join("config.json"))?
        .ok_or_else(|| Error::load("config.json went away while the model was being opened"))?;
    // Before the weights, so that an unsupported model is named as such even if its weights are in another format.
    arch::from_config(&config).map_err(|error| error.context("config.json"))?;
    let generation = Config::read(&folder.join("generation_config.json"))?;
    let weights = SafetensorsFiles::open_folder(folder)?;
    ModelFiles::from_parts(&config, generation.as_ref(), weights, text_files::from_folder(folder)?, name)
}

fn open_file(path: &Path, name: String) -> Result<ModelFiles> {
    let bytes = FileBytes::map(path)?;
    if !bytes.starts_with(b"GGUF") {
        return Err(match path.extension().is_some_and(|extension| extension == "safetensors") {
            true => Error::load("a safetensors file has no configuration; give the folder that it lies in"),
            false => Error::load("not a GGUF file (it does not start with \"GGUF\")"),
        });
    }
    ModelFiles::from_gguf(bytes, name)
}

fn gguf_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error: std::io::Error| Error::load(format!("cannot list {}: {error}", folder.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "gguf") {
            files.push(path);
        }
    }
    Ok(files)
}

/// The end of the sequence, of a turn and of a message, of a file without a vocabulary.
fn end_tokens_of_gguf(metadata: Metadata<'_>, vocab_size: usize) -> Result<Vec<TokenId>> {
    let mut ids = Vec::new();
    for name in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        ids.extend(text_files::special_id(metadata, name, vocab_size)?);
    }
    Ok(without_repeats(ids))
}

/// One id or a list of them. Negative numbers are some makers' way to say "none".
fn token_ids(config: &Config, key: &str) -> Result<Vec<TokenId>> {
    let Some(value) = config.value(key) else { return Ok(Vec::new()) };
    let numbers = match value {
        serde_json::Value::Array(items) => items.iter().map(serde_json::Value::as_i64).collect(),
        other => other.as_i64().map(|id| vec![id]),
    };
    let numbers: Vec<i64> =
        numbers.ok_or_else(|| Error::load(format!("{key} should be a token id or a list of them")))?;
    Ok(without_repeats(numbers.into_iter().filter_map(|id| TokenId::try_from(id).ok()).collect()))
}

fn without_repeats(ids: Vec<TokenId>) -> Vec<TokenId> {
    let mut unique = Vec::new();
    for id in ids {
        if !unique.contains(&id) {
            unique.push(id);
        }
    }
    unique
}

/// Refuses layers and experts that the files cannot hold, before a place is made for each.
fn check_counts(spec: &ModelSpec, source: &dyn WeightSource) -> Result<()> {
    let (layers, tensors) = (spec.layers.len(), source.tensors());
    if layers > tensors.len() {
        return Err(Error::load(format!(
            "the model should have {layers} layers, but has {} tensors only",
            tensors.len()
        )));
    }
    let of_layer = |layer: &LayerSpec| match layer.mlp.kind {
        MlpKind::Experts { count, .. } => count,
        MlpKind::Gated | MlpKind::Plain => 0,
    };
    let experts = spec.layers.iter().map(of_layer).fold(0, usize::saturating_add);
    let elements = tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).fold(0, usize::saturating_add);
    // Each has three matrices of the model's width, of which kernels ask for 32 at least.
    if experts.saturating_mul(3 * spec.hidden_size.max(32)) > elements {
        return Err(Error::load(format!(
            "the model should have {experts} experts in {layers} layers, but its tensors have {elements} elements only"
        )));
    }
    Ok(())
}

/// Bytes hashed at either end and in the middle of each tensor: two trainings of one model differ nearly everywhere, so
/// samples tell them apart without reading gigabytes.
const SAMPLE_BYTES: usize = 256;
/// Hexadecimal digits of an identity.
const IDENTITY_DIGITS: usize = 32;

fn identity(spec: &ModelSpec, source: &dyn WeightSource) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{spec:?}"));
    for (index, info) in source.tensors().iter().enumerate() {
        hash.update(format!("{info:?}"));
        let bytes = source.bytes(index);
        let sample = SAMPLE_BYTES.min(bytes.len());
        for start in [0, (bytes.len() - sample) / 2, bytes.len() - sample] {
            hash.update(&bytes[start..start + sample]);
        }
    }
    let mut digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    digits.truncate(IDENTITY_DIGITS);
    digits
}
