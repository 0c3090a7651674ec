//! The f64 sampler against recorded exact distributions, and its draws against the same by a chi-square test.

#[path = "common/chi_square.rs"]
mod chi_square;
#[path = "common/golden.rs"]
mod golden;

use golden::Tensors;
use octavo::base::TokenId;
use octavo::reference::sample;
use octavo::sampling::{SamplingParams, SamplingRow};

/// One recorded case.
struct Case {
    name: String,
    logits: Vec<f32>,
    params: SamplingParams,
    /// Exact distribution over the tokens that can be drawn.
    recorded: Vec<(TokenId, f64)>,
}

/// The recorded cases that use only parameters octavo has.
fn cases() -> Vec<Case> {
    let list = golden::json("sampling/sampling.json");
    let recorded = Tensors::open("sampling/sampling.safetensors");
    let mut cases = Vec::new();
    for case in list["cases"].as_array().unwrap() {
        let mut params = SamplingParams { temperature: 1.0, ..Default::default() };
        let known = case["params"].as_object().unwrap().iter().all(|(key, value)| {
            let number = value.as_f64().unwrap_or(f64::NAN);
            match key.as_str() {
                "temperature" => params.temperature = number as f32,
                "top_k" => params.top_k = number as u32,
                "top_p" => params.top_p = number as f32,
                "min_p" => params.min_p = number as f32,
                _ => return false,
            }
            true
        });
        if !known {
            continue;
        }
        params.validate().unwrap();
        let name = case["name"].as_str().unwrap();
        let probabilities = recorded.floats(&format!("probs.{name}"));
        let ids = match case["form"].as_str().unwrap() {
            "sparse" => recorded.ids(&format!("ids.{name}")),
            _ => (0..probabilities.len() as u32).collect(),
        };
        let logits = recorded.f32s(case["logits"].as_str().unwrap());
        let recorded = ids.into_iter().zip(probabilities).collect();
        cases.push(Case { name: name.to_string(), logits, params, recorded });
    }
    assert!(cases.len() > 50, "only {} cases", cases.len());
    cases
}

#[test]
fn distributions_match_the_recordings() {
    for Case { name, logits, params, recorded } in cases() {
        let ours = sample::filtered_distribution(&logits, &SamplingRow::new(&params, 0, &[]));
        let sum: f64 = ours.iter().map(|(_, probability)| probability).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{name}: {sum}");
        assert!(ours.windows(2).all(|pair| pair[0].1 >= pair[1].1), "{name} is not likeliest first");
        let mut ours = ours;
        let mut recorded = recorded;
        ours.sort_by_key(|&(token, _)| token);
        recorded.sort_by_key(|&(token, _)| token);
        assert_eq!(ours.len(), recorded.len(), "{name}");
        for (&(token, ours), &(recorded_token, recorded)) in ours.iter().zip(&recorded) {
            assert_eq!(token, recorded_token, "{name}");
            let difference = (ours - recorded).abs();
            let ok = difference < 1e-5 && difference <= 1e-4 * recorded.max(f64::MIN_POSITIVE);
            assert!(ok, "{name}, token {token}: {ours}, recorded {recorded}");
        }
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
    for Case { name, logits, params, recorded } in cases() {
        // The plain loop of the twin takes too long for the two largest supports; their distributions are compared.
        if recorded.len() == 1 || recorded.len() > 4000 {
            continue;
        }
        let row = SamplingRow::new(&params, 7, &[]);
        let mut kept = sample::filtered_distribution(&logits, &row);
        kept.sort_by_key(|&(token, _)| token);
        let mut counts = vec![0; logits.len()];
        // A thousand tokens of each of two hundred sequences.
        for number in 0..DRAWS {
            let (seed, index) = (u64::from(number / 1000) << 17, number % 1000);
            counts[sample::draw(&kept, seed, index).unwrap().token as usize] += 1;
        }
        let p = chi_square::p_value(&counts, &recorded).unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{name}: p = {p:.4}");
        assert!(p > chi_square::LEAST_P, "{name}: p = {p:e}");
        // What was counted is what a request gets.
        for index in 0..20 {
            assert_eq!(sample::pick(&logits, &row, index), sample::draw(&kept, 7, index).map(|draw| draw.token));
        }
        tested += 1;
    }
    assert!(tested > 30, "only {tested} cases");
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
