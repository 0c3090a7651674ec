//! The sampler on every adapter that is there: the recorded distributions read back from the device, draws against them by a
//! chi-square test, and the ways a token can come about.
//!
//! To try a second driver, name its manifest: `VK_DRIVER_FILES=.../vk_swiftshader_icd.json`. `OCTAVO_TEST_DRAWS` sets the number
//! of draws of each case, `OCTAVO_TEST_CASE` takes only the cases whose name contains it; the usual few draws of all cases
//! keep the suite short.

#[path = "common/chi_square.rs"]
mod chi_square;
#[path = "common/golden.rs"]
mod golden;
#[path = "common/sampling_cases.rs"]
mod sampling_cases;

use octavo::gpu::device::ShaderMode;
use octavo::gpu::{FoundAdapter, Gpu, list_adapters};
use octavo::kernels::sample::Path;
use octavo::kernels::self_test::rig::Rig;
use octavo::kernels::self_test::sampler::cases::{distinct_logits, full_row, plain_row};
use octavo::kernels::self_test::sampler::{self, Case};
use octavo::layout::inputs::{BAD_LOGITS, NOTHING_ALLOWED};
use octavo::sampling::{SamplingLists, SamplingParams, TopLogprobs};
use sampling_cases::Recorded;

fn devices() -> Vec<(String, Gpu)> {
    let open =
        |found: FoundAdapter| (found.profile.name.clone(), Gpu::open_adapter(found, ShaderMode::Trusted).unwrap());
    let devices: Vec<_> = list_adapters().unwrap().into_iter().map(open).collect();
    assert!(!devices.is_empty(), "no adapter; see `octavo doctor`");
    devices
}

/// Software adapters that interpret more than they compile get fewer repetitions of the same thing.
fn slow(name: &str) -> bool {
    name.contains("SwiftShader")
}

fn row_of(case: &Recorded, seed: u64) -> sampler::Row {
    full_row(&case.params, &case.lists, &case.prompt, &case.output, seed)
}

/// All cases of a vocabulary are rows of one batch, each with its own logits and parameters.
#[test]
fn the_device_draws_from_the_recorded_distributions() {
    let all = sampling_cases::all();
    for (name, gpu) in devices() {
        for vocab_size in [512, 49_152] {
            let cases: Vec<&Recorded> = all.iter().filter(|case| case.logits.len() == vocab_size).collect();
            assert!(cases.len() > 10);
            let batch = Case {
                name: format!("{vocab_size} tokens"),
                logits: cases.iter().map(|case| case.logits.clone()).collect(),
                rows: cases.iter().map(|case| row_of(case, 9)).collect(),
            };
            let outputs = sampler::run(&Rig::new(&gpu), &batch).unwrap_or_else(|e| panic!("{name}: {e}"));
            for (index, case) in cases.iter().enumerate() {
                let ours = sampler::drawn_from(&batch, &outputs, index);
                sampling_cases::compare(case, &ours).unwrap_or_else(|e| panic!("{name}, {}: {e}", case.name));
                let token = outputs.sampled[index].token;
                assert!(ours.iter().any(|(kept, _)| *kept == token), "{name}, {}: token {token}", case.name);
            }
            sampler::sample(&Rig::new(&gpu), &batch).unwrap_or_else(|e| panic!("{name}: {e}"));
            println!("{name}: {} cases of {vocab_size} tokens", cases.len());
        }
    }
}

/// Draws of one dispatch, each at a position of its own.
const BATCH: u32 = 8192;

#[test]
fn draws_follow_the_recorded_distributions() {
    let asked: Option<u32> = std::env::var("OCTAVO_TEST_DRAWS").ok().map(|text| text.parse().expect("a number"));
    let only = std::env::var("OCTAVO_TEST_CASE").unwrap_or_default();
    let cases: Vec<Recorded> = sampling_cases::all().into_iter().filter(|case| case.name.contains(&only)).collect();
    for (name, gpu) in devices() {
        let rig = &Rig::new(&gpu);
        let mut least = (1.0, "");
        for (case, index) in cases.iter().zip(0..) {
            let usual = match (slow(&name), case.logits.len() > 1000) {
                (false, false) => 2000,
                (true, false) => 400,
                (false, true) => 200,
                (true, true) => 20,
            };
            // One token needs few draws.
            let draws = asked.filter(|_| case.distribution.len() > 1).unwrap_or(usual);
            let began = std::time::Instant::now();
            let mut counts = vec![0; case.logits.len()];
            for first in (0..draws).step_by(BATCH as usize) {
                // Each dispatch has a seed of its own, as sequences would have them.
                let row = row_of(case, u64::from(first) << 20 | index);
                let batch = Case { name: case.name.clone(), logits: vec![case.logits.clone()], rows: vec![row] };
                let positions = 1000..999 + (draws - first).min(BATCH);
                for token in
                    sampler::draws(rig, &batch, positions).unwrap_or_else(|e| panic!("{name}, {}: {e}", case.name))
                {
                    counts[token as usize] += 1;
                }
            }
            let p = chi_square::p_value(&counts, &case.distribution);
            let p = p.unwrap_or_else(|e| panic!("{name}, {}: {e}", case.name));
            assert!(p > chi_square::LEAST_P, "{name}, {}: p = {p:e}", case.name);
            if asked.is_some() {
                println!("{name}: {}: {draws} draws in {:.1?}, p = {p:.5}", case.name, began.elapsed());
            }
            if p < least.0 {
                least = (p, &case.name);
            }
        }
        println!("{name}: {} cases, least p = {:.5} in {}", cases.len(), least.0, least.1);
        assert!(!cases.is_empty());
    }
}

/// Which way each kind of request goes, with the same survivors either way.
#[test]
fn few_survivors_are_sorted_and_many_are_searched() {
    const VOCAB: usize = 20_000;
    let drawn = SamplingParams { temperature: 1.0, ..Default::default() };
    let wide = SamplingParams { temperature: 100.0, ..drawn.clone() };
    let cases = [
        (SamplingParams::default(), Path::Largest),
        (drawn.clone(), Path::Unfiltered),
        (SamplingParams { top_k: VOCAB as u32, ..drawn.clone() }, Path::Unfiltered),
        (SamplingParams { top_k: 64, ..drawn.clone() }, Path::Sorted),
        (SamplingParams { top_k: 40, top_p: 0.95, min_p: 0.001, ..wide.clone() }, Path::Sorted),
        (SamplingParams { top_k: 100, ..drawn.clone() }, Path::Sorted),
        (SamplingParams { top_k: 101, ..drawn.clone() }, Path::Searched),
        (SamplingParams { top_k: 300, ..drawn.clone() }, Path::Searched),
        (SamplingParams { top_k: 300, min_p: 0.2, ..drawn.clone() }, Path::Sorted),
        (SamplingParams { top_p: 0.6, ..drawn.clone() }, Path::Sorted),
        (SamplingParams { top_p: 0.6, ..wide.clone() }, Path::Searched),
        (SamplingParams { min_p: 0.1, ..drawn }, Path::Sorted),
        (SamplingParams { min_p: 0.1, ..wide.clone() }, Path::Searched),
        (SamplingParams { min_p: 0.1, top_p: 0.5, ..wide }, Path::Searched),
    ];
    for (name, gpu) in devices() {
        let rows = cases.iter().zip(0..).map(|((params, _), seed)| plain_row(params, seed, 7)).collect();
        let case = Case { name: "ways".into(), logits: vec![distinct_logits(VOCAB, 3)], rows };
        let outputs = sampler::run(&Rig::new(&gpu), &case).unwrap();
        for ((params, path), sampled) in cases.iter().zip(&outputs.sampled) {
            assert_eq!(sampled.path(), Some(*path), "{name}: {params:?}");
        }
        sampler::sample(&Rig::new(&gpu), &case).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// Searches at their ends: more wanted than may come, a share that one token has, one that all but the last tokens have.
#[test]
fn searches_hold_at_both_ends() {
    const VOCAB: usize = 5000;
    let wide = SamplingParams { temperature: 100.0, ..Default::default() };
    let filters = [
        SamplingParams { top_k: 1500, ..wide.clone() },
        SamplingParams { top_k: 1000, ..wide.clone() },
        SamplingParams { top_k: 999, top_p: 0.9999, ..wide.clone() },
        SamplingParams { top_p: 0.9999, ..wide.clone() },
        // The last of a thousand nearly equal ones goes.
        SamplingParams { top_p: 0.9985, ..wide.clone() },
        SamplingParams { top_k: 1500, top_p: 0.0001, ..wide.clone() },
        SamplingParams { top_k: 500, min_p: 0.9, ..wide },
    ];
    let lists = SamplingLists { allowed: Some((0..4000).step_by(4).collect()), ..Default::default() };
    for (name, gpu) in devices() {
        let rows = filters.iter().zip(0..).map(|(params, seed)| full_row(params, &lists, &[1], &[2], seed)).collect();
        // Of both signs, so that keys span nearly all there are.
        let logits = distinct_logits(VOCAB, 3);
        assert!(logits.iter().any(|logit| *logit > 1.0) && logits.iter().any(|logit| *logit < -1.0));
        let case = Case { name: "ends".into(), logits: vec![logits], rows };
        let outputs = sampler::run(&Rig::new(&gpu), &case).unwrap();
        let kept: Vec<usize> = (0..filters.len()).map(|row| sampler::drawn_from(&case, &outputs, row).len()).collect();
        assert_eq!(kept[..2], [1000, 1000], "{name}");
        assert!((990..1000).contains(&kept[4]), "{name}: {}", kept[4]);
        sampler::sample(&Rig::new(&gpu), &case).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// A row that is not finite, and one whose request leaves nothing, fail alone: their neighbours get the bits that they get alone.
#[test]
fn rows_without_a_token_fail_alone() {
    const VOCAB: usize = 3000;
    let params = SamplingParams {
        temperature: 0.8,
        top_p: 0.9,
        repetition_penalty: 1.2,
        logprobs: Some(TopLogprobs::Most(4)),
        ..Default::default()
    };
    let none = SamplingLists { allowed: Some(Vec::new()), ..Default::default() };
    let row = |lists: &SamplingLists, seed| full_row(&params, lists, &[5, 6], &[7, 8], seed);
    for (name, gpu) in devices() {
        let rig = &Rig::new(&gpu);
        let mut logits: Vec<Vec<f32>> = (0..5).map(|seed| distinct_logits(VOCAB, seed)).collect();
        let healthy = Case { name: "healthy".into(), logits: logits.clone(), rows: Vec::new() };
        let healthy = Case { rows: (0..5).map(|seed| row(&SamplingLists::default(), seed)).collect(), ..healthy };
        (logits[1][2999], logits[3][0]) = (f32::NAN, f32::INFINITY);
        let mut sick = Case { name: "sick".into(), logits, ..healthy.clone() };
        sick.rows[2] = row(&none, 2);
        let (healthy, sick) = (sampler::run(rig, &healthy).unwrap(), sampler::run(rig, &sick).unwrap());
        for index in [0, 4] {
            assert_eq!(healthy.sampled[index], sick.sampled[index], "{name}");
            assert_eq!(healthy.entries[index], sick.entries[index], "{name}");
        }
        let tokens = [1, 2, 3].map(|index| sick.sampled[index].token);
        assert_eq!(tokens, [BAD_LOGITS, NOTHING_ALLOWED, BAD_LOGITS], "{name}");
        assert!([1, 2, 3].iter().all(|&index| sick.states[index].done == 1 && sick.states[0].done == 0), "{name}");
    }
}

/// However the probability is spread, no token that the request drops is drawn, and none that is next to impossible.
#[test]
fn what_is_dropped_is_never_drawn() {
    const VOCAB: usize = 2100;
    // Nearly all mass on one token, the last ones dropped or as good as impossible.
    let mut logits = vec![-60.0; VOCAB];
    logits[17] = 8.0;
    let lists = SamplingLists { allowed: Some((0..2000).collect()), ..Default::default() };
    let params = SamplingParams { temperature: 1.0, ..Default::default() };
    for (name, gpu) in devices() {
        let rows = (0..if slow(&name) { 50 } else { 2000 }).map(|seed| full_row(&params, &lists, &[1], &[], seed));
        let case = Case { name: "one".into(), logits: vec![logits.clone()], rows: rows.collect() };
        let outputs = sampler::run(&Rig::new(&gpu), &case).unwrap();
        assert!(outputs.sampled.iter().all(|sampled| sampled.token == 17), "{name}");
    }
}
