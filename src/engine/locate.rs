//! From what a user calls a model to files on this computer.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// Finds a model: a Hugging Face folder, a `.gguf` file, or a hub id (`organisation/name`, or
/// `organisation/name:file.gguf` for one file of a repository), which is downloaded to the hub's cache.
///
/// # Errors
/// Nothing of that name, with what was tried; a failed download.
pub fn locate_model(model: &str) -> Result<PathBuf> {
    let path = Path::new(model);
    if path.exists() {
        return Ok(path.to_owned());
    }
    if model.is_empty() {
        return Err(Error::load("the model's name is empty; give a folder, a .gguf file or a hub id"));
    }
    let Some((repository, file)) = hub_id(model) else {
        return Err(Error::load(format!(
            "there is no file or folder `{model}`, and a hub id looks like `organisation/name` or \
             `organisation/name:file.gguf`"
        )));
    };
    fetch(model, repository, file)
}

#[cfg(feature = "hub")]
fn fetch(_: &str, repository: &str, file: Option<&str>) -> Result<PathBuf> {
    super::hub::fetch(repository, file)
}

#[cfg(not(feature = "hub"))]
fn fetch(model: &str, _: &str, _: Option<&str>) -> Result<PathBuf> {
    Err(Error::load(format!(
        "there is no file or folder `{model}`, and this build cannot download models (cargo feature `hub`)"
    )))
}

/// The repository and the file that `model` names, if it has the form of a hub id.
fn hub_id(model: &str) -> Option<(&str, Option<&str>)> {
    let (repository, file) = match model.split_once(':') {
        Some((repository, file)) => (repository, Some(file)),
        None => (model, None),
    };
    let (organisation, name) = repository.split_once('/')?;
    let plain = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
    };
    let file_fits = file.is_none_or(|file| file.ends_with(".gguf") && file.split('/').all(plain));
    // `models/x.gguf` is far more often a path with a typing error than a repository.
    let looks_like_file = name.ends_with(".gguf") || name.ends_with(".safetensors");
    (plain(organisation) && plain(name) && file_fits && !looks_like_file).then_some((repository, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_ids_are_told_from_paths() {
        assert_eq!(hub_id("Qwen/Qwen3-0.6B"), Some(("Qwen/Qwen3-0.6B", None)));
        assert_eq!(hub_id("a/b:c.gguf"), Some(("a/b", Some("c.gguf"))));
        assert_eq!(hub_id("a/b:sub/c.gguf"), Some(("a/b", Some("sub/c.gguf"))));
        for path in ["model.gguf", "./a/b", "/a/b", "a/b/c", "a/b:c.bin", "C:\\models", "models/x.gguf", "a/..", "a/"] {
            assert_eq!(hub_id(path), None, "{path}");
        }
    }

    #[test]
    fn a_missing_path_is_named() {
        let message = locate_model("/no/such/model.gguf").unwrap_err().to_string();
        assert!(message.contains("/no/such/model.gguf"), "{message}");
    }

    #[test]
    fn existing_paths_are_taken_as_they_are() {
        let folder = std::env::temp_dir();
        assert_eq!(locate_model(&folder.to_string_lossy()).unwrap(), folder);
    }
}
