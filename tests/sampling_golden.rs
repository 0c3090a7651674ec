//! The f64 sampler against recorded exact distributions, and its draws against the same by a chi-square test.

#[path = "common/chi_square.rs"]
mod chi_square;
#[path = "common/golden.rs"]
mod golden;

#[path = "common/sampling_cases.rs"]
mod sampling_cases;

use golden::Tensors;
use octavo::base::TokenId;
use octavo::kernels::self_test::sampler::cases::full_row;
use octavo::reference::sample;
use octavo::sampling::{SamplingParams, SamplingRow};
use sampling_cases::Recorded;

/// The twin's distribution, likeliest first.
fn distribution(case: &Recorded) -> Vec<(TokenId, f64)> {
    let row = full_row(&case.params, &case.lists, &case.prompt, &case.output, 7);
    sample::distribution(&row.processed(&case.logits).unwrap(), &row.sampling)
}

#[test]
fn distributions_match_the_recordings() {
    for case in sampling_cases::all() {
        let name = &case.name;
        let mut ours = distribution(&case);
        let sum: f64 = ours.iter().map(|(_, probability)| probability).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{name}: {sum}");
        assert!(ours.windows(2).all(|pair| pair[0].1 >= pair[1].1), "{name} is not likeliest first");
        ours.sort_by_key(|&(token, _)| token);
        sampling_cases::compare(&case, &ours).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn ties_are_kept_by_top_k_and_go_to_the_lowest_id_when_greedy() {
    let mut logits = Tensors::open("sampling/sampling.safetensors").f32s("logits.v16_ties");
    let support = |logits: &[f32], params: SamplingParams| {
        let kept = sample::filtered_distribution(logits, &SamplingRow::new(&params, 0, &[]));
        let mut ids: Vec<TokenId> = kept.into_iter().map(|(token, _)| token).collect();
        ids.sort();
        ids
    };
    assert_eq!(support(&logits, SamplingParams { temperature: 1.0, top_k: 3, ..Default::default() }), [0, 2, 5, 9, 11]);
    logits[0] = 1.0;
    assert_eq!(support(&logits, SamplingParams::default()), [0]);
}

#[test]
fn draws_follow_the_recorded_distributions() {
    const DRAWS: u32 = 200_000;
    let mut tested = 0;
    for case in sampling_cases::all() {
        let name = &case.name;
        // The plain loop of the twin takes too long for the largest supports; their distributions are compared.
        if case.distribution.len() == 1 || case.distribution.len() > 4000 {
            continue;
        }
        let mut kept = distribution(&case);
        kept.sort_by_key(|&(token, _)| token);
        let mut counts = vec![0; case.logits.len()];
        // A thousand tokens of each of two hundred sequences.
        for number in 0..DRAWS {
            let (seed, index) = (u64::from(number / 1000) << 17, number % 1000);
            counts[sample::draw(&kept, seed, index).unwrap().token as usize] += 1;
        }
        let p = chi_square::p_value(&counts, &case.distribution).unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{name}: p = {p:.4}");
        assert!(p > chi_square::LEAST_P, "{name}: p = {p:e}");
        tested += 1;
    }
    assert!(tested > 50, "only {tested} cases");
}

/// What was counted is what a request gets.
#[test]
fn a_token_is_the_draw_of_its_seed_and_index() {
    let logits = Tensors::open("sampling/sampling.safetensors").f32s("logits.v16_ties");
    let row = SamplingRow::new(&SamplingParams { temperature: 1.0, top_p: 0.9, ..Default::default() }, 7, &[]);
    let mut kept = sample::filtered_distribution(&logits, &row);
    kept.sort_by_key(|&(token, _)| token);
    for index in 0..200 {
        assert_eq!(sample::pick_plain(&logits, &row, index), sample::draw(&kept, 7, index).map(|draw| draw.token));
    }
}

#[test]
fn the_chi_square_test_knows_its_distribution_and_sees_a_bias() {
    for x in [0.01f64, 0.5, 3.0, 10.0, 80.0] {
        let half = x / 2.0;
        let near = |ours: f64, exact: f64| assert!((ours / exact - 1.0).abs() < 1e-12, "{x}: {ours}, exactly {exact}");
        near(chi_square::tail(x, 2), (-half).exp());
        near(chi_square::tail(x, 4), (-half).exp() * (1.0 + half));
        near(chi_square::tail(x, 6), (-half).exp() * (1.0 + half + half * half / 2.0));
    }
    // Quantiles of printed tables, three decimals.
    for (x, freedom, p) in [(3.841, 1, 0.05), (6.635, 1, 0.01), (11.070, 5, 0.05), (124.342, 100, 0.05)] {
        let ours = chi_square::tail(x, freedom);
        assert!((ours / p - 1.0).abs() < 2e-3, "{x}, {freedom}: {ours}");
    }
    let distribution = [(0, 0.5), (1, 0.25), (2, 0.25)];
    assert!(chi_square::p_value(&[100_150, 49_900, 49_950], &distribution).unwrap() > 0.1);
    assert!(chi_square::p_value(&[101_500, 49_250, 49_250], &distribution).unwrap() < chi_square::LEAST_P);
    assert!(chi_square::p_value(&[10, 10, 10, 1], &distribution).is_err());
}
