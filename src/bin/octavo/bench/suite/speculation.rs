//! Speculative decoding in numbers: how many tokens a verification yields.
//!
//! With K drafts that are accepted independently with probability a, up to the first rejected one, and one token more that the
//! verification itself yields, the expected number is 1 + a + ... + a^K = (1 - a^(K+1)) / (1 - a) (Leviathan, Kalman and
//! Matias, "Fast inference from transformers via speculative decoding", ICML 2023). For a = 0.7 and K = 4 that is 2.77.

use super::super::report::{Table, number};
use super::{Bench, Conditions};
use octavo::sim::Random;
use serde_json::json;

const DRAFTS: u32 = 4;
const RATE: f64 = 0.7;
const DRAFT_MS: f64 = 0.5;
const TARGET_MS: f64 = 2.0;

/// Expected tokens for each verification.
fn expected(rate: f64, drafts: u32) -> f64 {
    match rate {
        1.0 => f64::from(drafts + 1),
        rate => (1.0 - rate.powi(drafts as i32 + 1)) / (1.0 - rate),
    }
}

/// Requests drawn token by token: tokens for each verification, over all of them. The last verification of a request may yield
/// more than it needs; all that it yields counts.
fn drawn(rate: f64, drafts: u32, requests: usize, tokens: usize, random: &mut Random) -> f64 {
    let (mut yielded, mut verifications) = (0, 0);
    for _ in 0..requests {
        let mut left = tokens as i64;
        while left > 0 {
            let accepted = (0..drafts).take_while(|_| random.chance(rate)).count() as i64;
            yielded += accepted + 1;
            left -= accepted + 1;
            verifications += 1;
        }
    }
    yielded as f64 / f64::from(verifications)
}

/// How much faster than one target step a token.
fn speed_up(rate: f64, drafts: u32) -> f64 {
    expected(rate, drafts) * TARGET_MS / (TARGET_MS + f64::from(drafts) * DRAFT_MS)
}

pub fn run(conditions: &Conditions) -> Bench {
    let (requests, tokens) = if conditions.fast { (20, 30) } else { (30, 50) };
    let mut random = Random::stream(conditions.seed, 4);
    let mut table = Table::new(&[
        "acceptance rate",
        "drafts",
        "tokens each (formula)",
        "drawn, as many requests",
        "drawn, 2,000 requests",
        "speed-up",
    ]);
    let mut rows = Vec::new();
    for (rate, drafts) in [(0.5, 4), (RATE, 2), (RATE, DRAFTS), (RATE, 8), (0.9, 4)] {
        let [few, many] = [requests, 2000].map(|requests| drawn(rate, drafts, requests, tokens, &mut random));
        table.row(vec![
            format!("{rate}"),
            drafts.to_string(),
            number(expected(rate, drafts)),
            number(few),
            number(many),
            format!("{:.2}", speed_up(rate, drafts)),
        ]);
        rows.push(json!({
            "rate": rate, "drafts": drafts, "expected": expected(rate, drafts), "drawn": few, "drawn_many": many,
            "speed_up": speed_up(rate, drafts),
        }));
    }
    Bench {
        name: "4-speculation",
        text: format!(
            "{requests} requests of {tokens} tokens; a draft takes {DRAFT_MS} ms, a verification {TARGET_MS} ms. Expected \
             tokens for each verification: (1 - a^(K+1)) / (1 - a), with acceptance rate a and K drafts."
        ),
        table,
        result: format!(
            "  at a = {RATE} and K = {DRAFTS} a verification yields {:.2} tokens on average, not 3.3 as is sometimes quoted",
            expected(RATE, DRAFTS)
        ),
        figures: json!({"requests": requests, "tokens": tokens, "draft_ms": DRAFT_MS, "target_ms": TARGET_MS, "rows": rows}),
        #[cfg(feature = "plot")]
        figure: picture(&mut random),
    }
}

#[cfg(feature = "plot")]
fn picture(random: &mut Random) -> octavo::plot::Figure {
    use octavo::plot::{Chart, Figure, Line, Mark, Series};
    let rates = || (0..=20).map(|step| f64::from(step) / 20.0);
    let mut lines: Vec<Line> = [2, 4, 8]
        .map(|drafts| {
            Line::new(format!("{drafts} drafts, formula"), rates().map(|rate| (rate, expected(rate, drafts))).collect())
        })
        .to_vec();
    let points = rates().map(|rate| (rate, drawn(rate, DRAFTS, 200, 50, random))).collect();
    lines.push(Line::new(format!("{DRAFTS} drafts, drawn"), points));
    let yields = Chart {
        subtitle: "formula, and a process drawn token by token".into(),
        x_label: "acceptance rate".into(),
        y_label: "tokens per verification".into(),
        ..Chart::new("What a verification yields", Series::Lines(lines))
    };
    let gain = |rate: f64| {
        let points = (1..=12).map(|drafts| (f64::from(drafts), speed_up(rate, drafts))).collect();
        Line::new(format!("acceptance {rate}"), points)
    };
    let speed = Chart {
        subtitle: format!("a draft takes {DRAFT_MS} ms, a verification {TARGET_MS} ms"),
        x_label: "drafts per verification".into(),
        y_label: "times as fast as without drafts".into(),
        marks: vec![Mark::Y(1.0, "no gain".into())],
        ..Chart::new("More drafts are not always better", Series::Lines([0.5, 0.7, 0.9].map(gain).to_vec()))
    };
    Figure { title: "Speculative decoding".into(), columns: 2, panels: vec![yields, speed] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_is_the_sum_and_four_drafts_at_seven_tenths_yield_2_77() {
        for (rate, drafts) in [(0.0, 3), (0.3, 1), (0.7, 4), (0.99, 8), (1.0, 5)] {
            let sum: f64 = (0..=drafts).map(|power| f64::powi(rate, power as i32)).sum();
            assert!((expected(rate, drafts) - sum).abs() < 1e-9, "{rate} {drafts}");
        }
        assert_eq!(format!("{:.2}", expected(0.7, 4)), "2.77");
    }

    #[test]
    fn the_drawn_process_agrees_with_the_formula() {
        let mut random = Random::new(5);
        for (rate, drafts) in [(0.5, 4), (0.7, 4), (0.9, 8)] {
            let (expected, drawn) = (expected(rate, drafts), drawn(rate, drafts, 4000, 50, &mut random));
            // At least 4000 * 50 / 9 verifications, each with a deviation below 3.4: a standard error below 0.023.
            assert!((drawn - expected).abs() < 5.0 * 0.023, "{rate} {drafts}: {drawn} against {expected}");
        }
    }
}
