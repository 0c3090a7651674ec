//! Log-probabilities on their way from results to streams: next to their tokens, each with its own likeliest tokens, in streams and
//! in whole outputs, of several outputs and of prompts.

use super::*;
use octavo::engine::Logprob;
use octavo::runner::{TokenLogprob, TopRange, TopToken};
use octavo::sampling::TopLogprobs;
use octavo::sampling::row::{NO_LOGPROBS, logprob_entries};

/// What is reported of `token` at any place, by whoever asks for `top` others.
fn told(token: TokenId, top: u32) -> Logprob {
    let logprob = MockOptions::logprob(token);
    let others = (0..top).map(|rank| ((token + rank) % 512, -0.25 * rank as f32)).collect();
    Logprob { token, logprob, rank: 1 + token % 9, top: others }
}

/// A mock that reports what was asked for, with the likeliest tokens of all rows in one list, as devices do.
fn reporting(mock: &MockOptions) -> Box<dyn ModelRunner> {
    let edit = |rows: &Rows, result: &mut StepResult| {
        result.top.clear();
        let mut report = |token, wanted| {
            let told = told(token, logprob_entries(wanted, 512));
            let top = TopRange { first: result.top.len() as u32, count: told.top.len() as u32 };
            result.top.extend(told.top.iter().map(|&(token, logprob)| TopToken { token, logprob }));
            TokenLogprob { logprob: told.logprob, rank: told.rank, top }
        };
        for sampled in &mut result.tokens {
            let wanted = rows[&sampled.seq].logprobs;
            sampled.logprob = None;
            if let (Ok(token), true) = (sampled.token, wanted != NO_LOGPROBS) {
                sampled.logprob = Some(report(token, wanted));
            }
        }
        for score in &mut result.scores {
            // The mock's score tells the token only modulo 7, so the report is about that.
            let token = (-1.0 - score.logprob) as TokenId;
            let found = report(token, rows[&score.seq].prompt_logprobs);
            (score.rank, score.top) = (found.rank, found.top);
        }
    };
    Box::new(EditedRunner::new(mock, edit))
}

fn engine(mock: &MockOptions) -> Engine {
    let mut settings = settings(mock);
    settings.max_logprobs = None;
    Engine::start(reporting(mock), None, Some(tokenizer()), settings).unwrap()
}

fn all_told(tokens: &[TokenId], top: u32) -> Vec<Logprob> {
    tokens.iter().map(|token| told(*token, top)).collect()
}

#[test]
fn each_token_brings_its_own_and_only_where_asked() {
    let mut mock = MockOptions { eos_per_mille: 10, ..mock() };
    // Little memory, so that some are preempted on the way.
    mock.capacity.block_count = 24;
    let engine = engine(&mock);
    let wishes: [Option<TopLogprobs>; 5] =
        [None, Some(0.into()), Some(3.into()), Some(TopLogprobs::All), Some(100.into())];
    let streams: Vec<_> = (0..20)
        .map(|i| {
            let params = SamplingParams { logprobs: wishes[i % 5], ..SamplingParams::greedy(60) };
            engine.generate(Request::new(prompt(i as u32, 10 + i), params)).unwrap()
        })
        .collect();
    let mut preemptions = 0;
    for (i, stream) in streams.into_iter().enumerate() {
        let output = stream.wait().unwrap();
        assert_eq!(output.token_ids, expected(&mock, &prompt(i as u32, 10 + i), &SamplingParams::greedy(60)));
        let told = match wishes[i % 5] {
            None => Vec::new(),
            Some(TopLogprobs::Most(0)) => all_told(&output.token_ids, 0),
            Some(TopLogprobs::Most(3)) => all_told(&output.token_ids, 3),
            // More than the device selects comes as the whole vocabulary, best first.
            _ => all_told(&output.token_ids, 512),
        };
        let shown = if i % 5 == 4 { 100 } else { 512 };
        for (found, told) in output.logprobs.iter().zip(&told) {
            assert_eq!((found.token, found.logprob, found.rank), (told.token, told.logprob, told.rank), "request {i}");
            assert_eq!(found.top, told.top[..told.top.len().min(shown)], "request {i}");
        }
        assert_eq!(output.logprobs.len(), told.len(), "request {i}");
        preemptions += output.usage.preemptions;
    }
    assert!(preemptions > 0, "the memory was meant to be short");
    assert_all_free(&engine);
}

#[test]
fn streams_and_outputs_tell_the_same() {
    let mock = mock();
    let engine = engine(&mock);
    let params = SamplingParams::sampled(1.0).n(3).seed(5).max_tokens(40).logprobs(2).stop("e");
    let mut parts = vec![(Vec::new(), Vec::new()); 3];
    let mut stream = engine.generate(Request::new(prompt(1, 20), params.clone())).unwrap();
    while let Some(event) = next(&mut stream) {
        if let TokenEvent::Delta { index, token_ids, logprobs, .. } = event.unwrap() {
            assert_eq!(token_ids.len(), logprobs.len(), "side by side in every event");
            parts[index].0.extend(token_ids);
            parts[index].1.extend(logprobs);
        }
    }
    let output = engine.generate(Request::new(prompt(1, 20), params)).unwrap().wait().unwrap();
    let mut whole = vec![(output.token_ids, output.logprobs)];
    whole.extend(output.alternatives.into_iter().map(|other| (other.token_ids, other.logprobs)));
    assert_eq!(parts, whole);
    for (tokens, logprobs) in whole {
        assert_eq!(logprobs, all_told(&tokens, 2));
    }
}

#[test]
fn a_prompt_is_scored_beside_its_outputs() {
    let mock = mock();
    let engine = engine(&mock);
    let prompt = prompt(4, 90);
    let scores: Vec<Logprob> =
        prompt[1..].iter().map(|token| Logprob { token: *token, ..told(token % 7, 5) }).collect();
    for n in [1, 3] {
        let params = SamplingParams::sampled(1.0).seed(9).max_tokens(10).ignore_eos().prompt_logprobs(5).n(n);
        let output = engine.generate(Request::new(&prompt[..], params.clone())).unwrap().wait().unwrap();
        assert_eq!(output.prompt_logprobs, scores, "{n} outputs");
        assert_eq!(output.token_ids, expected(&mock, &prompt, &params));
        assert!(output.logprobs.is_empty());
    }
    // Alone, without a word about the others at each place.
    let output = engine.generate(Request::score(&prompt[..])).unwrap().wait().unwrap();
    assert_eq!(output.token_ids.len(), 0);
    for (found, score) in output.prompt_logprobs.iter().zip(&scores) {
        assert_eq!((found.token, found.logprob, found.top.len()), (score.token, score.logprob, 0));
    }
}
