//! Starting: what is kept on disk for the next time, and that nothing depends on it.

#[path = "common/golden.rs"]
mod golden;

use octavo::{EngineOptions, Llm, Prompt, SamplingParams};
use std::fs;
use std::path::{Path, PathBuf};

fn answer(cache_dir: Option<&Path>) -> (Vec<u32>, String) {
    let options = EngineOptions {
        max_num_seqs: 2,
        max_num_batched_tokens: 32,
        max_model_len: Some(128),
        cache_dir: cache_dir.map(Path::to_owned),
        ..EngineOptions::default()
    };
    let llm = Llm::open(golden::path("tiny-llama").to_str().unwrap(), options).unwrap();
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(12) };
    let outputs = llm.generate([Prompt::Tokens(vec![5, 6, 7, 8])], params).unwrap();
    (outputs[0].token_ids.clone(), llm.info().backend)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn what_is_kept_changes_no_token_and_may_be_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let (expected, backend) = answer(None);
    assert!(files(folder.path()).is_empty());
    assert_eq!(answer(Some(folder.path())).0, expected);
    let kept = files(folder.path());
    // Only Vulkan lets programs keep pipelines.
    assert_eq!(kept.iter().any(|file| file.to_str().unwrap().contains("pipelines-vulkan")), backend == "vulkan");
    let whole: Vec<Vec<u8>> = kept.iter().map(|file| fs::read(file).unwrap()).collect();
    assert_eq!(answer(Some(folder.path())).0, expected);
    assert_eq!(files(folder.path()), kept);
    for (file, whole) in kept.iter().zip(&whole) {
        fs::write(file, &whole[..whole.len() / 2]).unwrap();
    }
    assert_eq!(answer(Some(folder.path())).0, expected);
    assert_eq!(files(folder.path()), kept, "damaged files are replaced, and no temporary ones are left");
}

#[test]
fn a_folder_that_cannot_be_written_is_no_obstacle() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "in the way").unwrap();
    assert_eq!(answer(Some(&file)).0, answer(None).0);
}
