//! Starting: what is kept on disk for the next time, and that nothing depends on it.

#[path = "common/golden.rs"]
mod golden;

use octavo::base::RequestId;
use octavo::config::EngineConfig;
use octavo::gpu::kept::Kept;
use octavo::kernels::choice::product_candidates;
use octavo::model::files::ModelFiles;
use octavo::runner::wgpu::WgpuRunner;
use octavo::runner::{ModelRunner, StepResult, Wait};
use octavo::sampling::SamplingRow;
use octavo::sched::plan::StepPlan;
use octavo::sched::{NewSequence, Scheduler, SchedulerConfig};
use octavo::{EngineOptions, Llm, Prompt, SamplingParams};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

fn kept_in(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn what_is_kept_changes_no_token_and_may_be_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let (expected, backend) = answer(None);
    assert!(kept_in(folder.path()).is_empty());
    assert_eq!(answer(Some(folder.path())).0, expected);
    let kept = kept_in(folder.path());
    // Only Vulkan lets programs keep pipelines.
    assert_eq!(kept.iter().any(|file| file.to_str().unwrap().contains("pipelines-vulkan")), backend == "vulkan");
    let whole: Vec<Vec<u8>> = kept.iter().map(|file| fs::read(file).unwrap()).collect();
    assert_eq!(answer(Some(folder.path())).0, expected);
    assert_eq!(kept_in(folder.path()), kept);
    for (file, whole) in kept.iter().zip(&whole) {
        fs::write(file, &whole[..whole.len() / 2]).unwrap();
    }
    assert_eq!(answer(Some(folder.path())).0, expected);
    assert_eq!(kept_in(folder.path()), kept, "damaged files are replaced, and no temporary ones are left");
}

#[test]
fn a_folder_that_cannot_be_written_is_no_obstacle() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "in the way").unwrap();
    assert_eq!(answer(Some(&file)).0, answer(None).0);
}

#[test]
fn tuning_ends_in_time_changes_no_token_and_is_remembered() {
    let files = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    let options = EngineOptions { max_num_seqs: 2, max_num_batched_tokens: 32, ..EngineOptions::default() };
    let config = EngineConfig::new(options, &files.spec).unwrap();
    let load = || WgpuRunner::load(&files, &config, &mut |_| {}).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut runner = load();
    let profile = runner.gpu().profile.clone();
    assert_eq!(profile.products, None, "nothing is measured unless there is a place to remember it");
    let candidates = product_candidates(&profile);
    // No time at all: only the usual shape has its turn, and it stays.
    let tuning = runner.tune(Some(folder.path()), Duration::ZERO).unwrap();
    assert_eq!((tuning.chosen, tuning.tried.len()), (candidates[0], 1));
    assert!(kept_in(folder.path()).is_empty(), "a search that was cut short is no answer");
    let mut tokens = Vec::new();
    for &shape in &candidates {
        let mut runner = load();
        runner.force_shape(shape);
        tokens.push(decoded(&mut runner, &files));
    }
    assert!(tokens.iter().all(|other| *other == tokens[0] && other.len() == 12));
    let tuning = runner.tune(Some(folder.path()), Duration::from_secs(60)).unwrap();
    let tried: Vec<_> = tuning.tried.iter().map(|(shape, _)| *shape).collect();
    assert_eq!(tried, candidates);
    assert!(candidates.contains(&tuning.chosen));
    assert_eq!(kept_in(folder.path()).len(), 1);
    let again = load().tune(Some(folder.path()), Duration::ZERO).unwrap();
    assert_eq!((again.chosen, again.tried.len()), (tuning.chosen, 0));
    // A shape that is no candidate is measured afresh.
    let file = Kept::new(folder.path(), "products", &profile);
    file.write(br#"{"groups": 1000000, "segment_lanes": 3}"#).unwrap();
    assert_eq!(load().tune(Some(folder.path()), Duration::ZERO).unwrap().tried.len(), 1);
}

/// Twelve greedy tokens.
fn decoded(runner: &mut WgpuRunner, files: &ModelFiles) -> Vec<u32> {
    let capacity = runner.capacity();
    let mut scheduler = Scheduler::new(SchedulerConfig::for_capacity(&capacity), capacity).unwrap();
    let row = SamplingRow::new(&SamplingParams::default(), 0, &[]);
    let prompt = (0..9).map(|i| (i * 37 + 5) % files.spec.vocab_size as u32).collect();
    scheduler.add(NewSequence::new(RequestId(0), prompt, 12, row), &mut Vec::new()).unwrap();
    let (mut plan, mut result, mut events, mut tokens) =
        (StepPlan::default(), StepResult::default(), Vec::new(), Vec::new());
    while scheduler.has_work() {
        while scheduler.schedule(&mut plan, &mut events) {
            runner.submit(&plan).unwrap();
        }
        if runner.poll(Wait::AtMost(Duration::from_secs(60)), &mut result).unwrap() {
            tokens.extend(result.tokens.iter().filter_map(|sampled| sampled.token.as_ref().ok()));
            scheduler.commit(&result, &mut events);
        }
    }
    tokens
}
