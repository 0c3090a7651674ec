//! Models from the Hugging Face hub, through its local cache. Only what octavo reads is downloaded.

use crate::error::{Error, Result};
use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo};
use std::path::PathBuf;

/// Small files, each of which a repository may lack.
const OPTIONAL: [&str; 5] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];
const WEIGHTS: &str = "model.safetensors";
const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

/// Downloads what is missing of `repository` (or of its one `file`) and returns where it lies: a folder, or the file.
///
/// # Errors
/// Off line and not in the cache, no such repository or file, no network; the message says which.
pub(super) fn fetch(repository: &str, file: Option<&str>) -> Result<PathBuf> {
    let cached = Cache::from_env().repo(Repo::model(repository.to_owned()));
    // A complete copy in the cache needs no network, as with other programs that use this cache.
    let local = match file {
        Some(file) => cached.get(file),
        None => cached.get("config.json").filter(|_| weights_complete(|name| cached.get(name))).and_then(folder_of),
    };
    if let Some(path) = local {
        return Ok(path);
    }
    if is_set("HF_HUB_OFFLINE") {
        return Err(Error::load(format!(
            "`{repository}` is not complete in the hub cache ({}), and HF_HUB_OFFLINE forbids downloads",
            Cache::from_env().path().display()
        )));
    }
    let failed = |error: &dyn std::fmt::Display| {
        Error::load(format!(
            "cannot fetch `{repository}` from the hub: {error}. Is the name right and the network up? A private or \
             gated model needs a token in HF_HOME/token. A folder or .gguf file on disk works without a network"
        ))
    };
    let api = ApiBuilder::from_env().with_progress(true).build().map_err(|error| failed(&error))?;
    let repo = api.model(repository.to_owned());
    if let Some(file) = file {
        return repo.get(file).map_err(|error| failed(&error));
    }
    let listing = repo.info().map_err(|error| failed(&error))?;
    let names: Vec<&str> = listing.siblings.iter().map(|sibling| sibling.rfilename.as_str()).collect();
    if !names.contains(&"config.json") {
        return Err(nothing_to_load(repository, &names));
    }
    download_folder(&repo, &names).map_err(|error| failed(&error))
}

fn download_folder(repo: &ApiRepo, names: &[&str]) -> Result<PathBuf> {
    let get = |name: &str| repo.get(name).map_err(|error| Error::load(format!("{name}: {error}")));
    let config = get("config.json")?;
    for name in OPTIONAL.iter().filter(|name| names.contains(*name)) {
        get(name)?;
    }
    if names.contains(&WEIGHTS_INDEX) {
        for shard in shards_in(&get(WEIGHTS_INDEX)?)? {
            get(&shard)?;
        }
    } else {
        get(WEIGHTS)?;
    }
    folder_of(config).ok_or_else(|| Error::bug("a file of the hub cache lies in no folder"))
}

/// Whether all weight files are there, as far as `get` finds them.
fn weights_complete(get: impl Fn(&str) -> Option<PathBuf>) -> bool {
    match get(WEIGHTS_INDEX) {
        Some(index) => shards_in(&index).is_ok_and(|shards| shards.iter().all(|shard| get(shard).is_some())),
        None => get(WEIGHTS).is_some(),
    }
}

/// File names in a safetensors index, each once.
fn shards_in(index: &std::path::Path) -> Result<Vec<String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let bad = |error: &dyn std::fmt::Display| Error::load(format!("{}: {error}", index.display()));
    let text = std::fs::read_to_string(index).map_err(|error| bad(&error))?;
    let index: Index = serde_json::from_str(&text).map_err(|error| bad(&error))?;
    let mut shards: Vec<String> = index.weight_map.into_values().collect();
    shards.sort_unstable();
    shards.dedup();
    Ok(shards)
}

fn folder_of(file: PathBuf) -> Option<PathBuf> {
    file.parent().map(PathBuf::from)
}

fn nothing_to_load(repository: &str, names: &[&str]) -> Error {
    let files: Vec<&str> = names.iter().copied().filter(|name| name.ends_with(".gguf")).collect();
    match files.is_empty() {
        true => Error::load(format!("`{repository}` has neither config.json nor a .gguf file")),
        false => Error::load(format!(
            "`{repository}` holds GGUF files; name one of them: {}",
            files.iter().map(|file| format!("{repository}:{file}")).collect::<Vec<_>>().join(", ")
        )),
    }
}

fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| !matches!(value.to_ascii_lowercase().as_str(), "" | "0" | "false" | "no"))
}
