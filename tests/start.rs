//! Starting: what is kept on disk for the next time, and that nothing depends on it.

#[path = "common/golden.rs"]
mod golden;

use octavo::base::RequestId;
use octavo::config::{EngineConfig, WarmUp};
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
    // No time at all: one candidate has its turn beside the usual shape, which stays.
    let tuning = runner.tune(Some(folder.path()), Duration::ZERO).unwrap();
    let tried: Vec<_> = tuning.tried.iter().map(|(shape, _)| *shape).collect();
    assert_eq!((tuning.chosen, tuning.complete, &tried[..]), (candidates[0], false, &candidates[..2]));
    let mut tokens = Vec::new();
    let results = runner.results(candidates[0]).unwrap();
    // All rows of a chunk and of one and two sequences, no two of them alike but those of token 0 at position 0.
    let vocab = files.spec.vocab_size;
    assert_eq!(results.iter().map(|step| step.len() / vocab).collect::<Vec<_>>(), [27, 1, 2]);
    let mut rows: Vec<&[u32]> = results[0].chunks(vocab).chain(results[2].chunks(vocab)).collect();
    rows.sort();
    rows.dedup();
    assert_eq!(rows.len(), 28);
    for &shape in &candidates {
        let mut runner = load();
        assert!(runner.results(shape).unwrap() == results, "{shape:?}");
        runner.force_shape(shape);
        tokens.push(decoded(&mut runner, &files));
    }
    assert!(tokens.iter().all(|other| *other == tokens[0] && other.len() == 12));
    // Goes on where it stopped.
    let tuning = runner.tune(Some(folder.path()), Duration::from_secs(60)).unwrap();
    let tried: Vec<_> = tuning.tried.iter().map(|(shape, _)| *shape).collect();
    assert_eq!(tried, [&candidates[..1], &candidates[2..]].concat());
    assert!(tuning.complete && candidates.contains(&tuning.chosen));
    assert_eq!(kept_in(folder.path()).len(), 1);
    let again = load().tune(Some(folder.path()), Duration::ZERO).unwrap();
    assert_eq!((again.chosen, again.complete, again.tried.len()), (tuning.chosen, true, 0));
    // Shapes that are no candidates are measured afresh.
    let file = load().kept_shape(folder.path());
    file.write(br#"{"tried": [[{"groups": 1000000, "segment_lanes": 3}, 0.1]], "chosen": null}"#).unwrap();
    assert_eq!(load().tune(Some(folder.path()), Duration::ZERO).unwrap().tried.len(), 2);
    // Another model's answer is another file.
    let other = ModelFiles::open(&golden::path("tiny-qwen3")).unwrap();
    let config = EngineConfig::new(EngineOptions { max_num_seqs: 2, ..EngineOptions::default() }, &other.spec).unwrap();
    let other = WgpuRunner::load(&other, &config, &mut |_| {}).unwrap();
    assert_ne!(other.kept_shape(folder.path()), file);
}

#[test]
fn steps_that_are_prepared_while_idle_change_no_token() {
    // Its products write keys and values themselves.
    let files = ModelFiles::open(&golden::path("tiny-llama3-rope")).unwrap();
    let options = |warm_up| EngineOptions {
        max_num_seqs: 5,
        max_num_batched_tokens: 96,
        max_model_len: Some(400),
        warm_up,
        ..EngineOptions::default()
    };
    let load = |warm_up| {
        let config = EngineConfig::new(options(warm_up), &files.spec).unwrap();
        WgpuRunner::load(&files, &config, &mut |_| {}).unwrap()
    };
    let mut usual = load(WarmUp::Load);
    assert!(usual.prepare().unwrap().is_complete(), "all was done before");
    let mut runner = load(WarmUp::Idle);
    let start = runner.counters();
    assert!(start.bundles < usual.counters().bundles && start.pipelines < usual.counters().pipelines);
    let schedulers = &mut [scheduler(&usual), scheduler(&runner)];
    let (mut pieces, mut longest) = (0, Duration::ZERO);
    let done = loop {
        // The last step before each piece fills blocks that are cached then; what comes after it reads them.
        let mut prompt: Vec<u32> =
            (0..48).map(|i| (pieces * 101 + i * 37 + 5) % files.spec.vocab_size as u32).collect();
        greedy(&mut schedulers[1], &mut runner, &prompt, 1);
        let since = std::time::Instant::now();
        let prepared = runner.prepare().unwrap();
        longest = longest.max(since.elapsed());
        prompt.push(7);
        let hits = schedulers[1].stats().prefix_hits;
        let tokens = greedy(&mut schedulers[1], &mut runner, &prompt, 5);
        assert_eq!(tokens, greedy(&mut schedulers[0], &mut usual, &prompt, 5), "after piece {pieces}");
        assert_eq!(schedulers[1].stats().prefix_hits, hits + 48);
        pieces += 1;
        if prepared.is_complete() {
            break prepared.total;
        }
    };
    println!("{done} steps in {pieces} pieces, the longest {longest:?}");
    let warm = runner.counters();
    assert!(warm.bundles >= done as usize && warm.pipelines >= usual.counters().pipelines && pieces > done);
    assert!(runner.prepare().unwrap().is_complete());
    decoded(&mut runner, &files);
    assert_eq!(runner.counters().pipelines, warm.pipelines, "nothing was left to compile");
}

/// Twelve greedy tokens, with nothing cached.
fn decoded(runner: &mut WgpuRunner, files: &ModelFiles) -> Vec<u32> {
    let prompt: Vec<u32> = (0..9).map(|i| (i * 37 + 5) % files.spec.vocab_size as u32).collect();
    greedy(&mut scheduler(runner), runner, &prompt, 12)
}

fn scheduler(runner: &WgpuRunner) -> Scheduler {
    let capacity = runner.capacity();
    Scheduler::new(SchedulerConfig::for_capacity(&capacity), capacity).unwrap()
}

fn greedy(scheduler: &mut Scheduler, runner: &mut WgpuRunner, prompt: &[u32], count: u32) -> Vec<u32> {
    let row = SamplingRow::new(&SamplingParams::default(), 0, &[]);
    scheduler.add(NewSequence::new(RequestId(0), prompt.to_vec(), count, row), &mut Vec::new()).unwrap();
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
