//! The same request with the same seed gives the same answer, tokens, text and log-probabilities, bit for bit: alone, in a crowd of
//! twelve, in little memory with preemption, with run-ahead and in lock step. Parameters are drawn from all that there are.
//!
//! The seed is printed; `OCTAVO_TEST_SEED` sets it, `OCTAVO_TEST_REQUESTS` the number of requests.

#[path = "common/drive.rs"]
mod drive;
#[path = "common/golden.rs"]
mod golden;

use drive::Dice;
use octavo::base::TokenId;
use octavo::engine::{Logprob, Request, RequestOutput};
use octavo::llm::{Flow, RunNews};
use octavo::model::files::ModelFiles;
use octavo::reference::runner::{ReferenceOptions, ReferenceRunner};
use octavo::runner::ModelRunner;
use octavo::sampling::RepetitionDetection;
use octavo::sched::Preemption;
use octavo::text::Tokenizer;
use octavo::{EngineOptions, FinishReason, KvDtype, Llm, SamplingParams, TopLogprobs};

const CONTEXT: usize = 160;
const CROWD: usize = 12;

/// What a request led to: everything but times, and what depends on the others on purpose.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    outputs: Vec<(Vec<TokenId>, String, Vec<Logprob>, FinishReason)>,
    prompt_logprobs: Vec<Logprob>,
}

type Outcome = Result<Answer, String>;

impl Answer {
    fn of(output: RequestOutput) -> Self {
        let RequestOutput { token_ids, text, logprobs, finish_reason, alternatives, prompt_logprobs, .. } = output;
        let mut outputs = vec![(token_ids, text, logprobs, finish_reason)];
        let others = alternatives.into_iter();
        outputs.extend(others.map(|other| (other.token_ids, other.text, other.logprobs, other.finish_reason)));
        Self { outputs, prompt_logprobs }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Twelve at a time, one step and one submission after the other, nothing remembered.
fn options() -> EngineOptions {
    EngineOptions {
        max_num_seqs: CROWD,
        max_num_batched_tokens: 128,
        max_model_len: Some(CONTEXT),
        num_kv_blocks: Some(CROWD * CONTEXT / 16),
        max_logprobs: None,
        prefix_cache: false,
        sync: true,
        steps_per_submit: 1,
        ..EngineOptions::default()
    }
}

/// Little more than one sequence of full length, with everything that goes on at once.
fn tiny_pool() -> EngineOptions {
    EngineOptions {
        num_kv_blocks: Some(CONTEXT / 16 + 2),
        prefix_cache: true,
        sync: false,
        steps_per_submit: 4,
        long_prefill_token_threshold: 19,
        ..options()
    }
}

/// Whether a thing happens, `percent` times in a hundred.
fn chance(dice: &mut Dice, percent: u64) -> bool {
    dice.below(100) < percent
}

fn between(dice: &mut Dice, least: f32, most: f32) -> f32 {
    least + (most - least) * dice.below(1001) as f32 / 1000.0
}

/// Parameters from the whole space; about a third of those that are off by default are on.
fn random_params(dice: &mut Dice, tokenizer: &Tokenizer) -> SamplingParams {
    let token = |dice: &mut Dice| dice.below(512) as TokenId;
    let word = |dice: &mut Dice| loop {
        let text = tokenizer.decode(&[dice.below(512) as TokenId], true);
        if !text.trim().is_empty() && !text.contains('\u{fffd}') {
            return text;
        }
    };
    let mut params = SamplingParams::greedy(1 + dice.below(30) as u32).seed(dice.word());
    if chance(dice, 65) {
        params.temperature = [0.005, 0.3, 0.8, 1.0, 1.5][dice.below(5) as usize];
        params.top_k = [0, 0, 1, 5, 40, 64, 65, 200, 1000][dice.below(9) as usize];
        params.top_p = [1.0, 1.0, 0.95, 0.5, 0.1][dice.below(5) as usize];
        params.min_p = [0.0, 0.0, 0.02, 0.3][dice.below(4) as usize];
        params.n = if chance(dice, 10) { 3 } else { 1 };
    }
    if chance(dice, 35) {
        params.repetition_penalty = between(dice, 0.7, 2.0);
    }
    if chance(dice, 35) {
        params.presence_penalty = between(dice, -2.0, 2.0);
    }
    if chance(dice, 35) {
        params.frequency_penalty = between(dice, -2.0, 2.0);
    }
    if chance(dice, 35) {
        let count = 1 + dice.below(30);
        params.logit_bias = (0..count).map(|_| (token(dice), between(dice, -5.0, 5.0))).collect();
    }
    if chance(dice, 20) {
        let most = if chance(dice, 20) { 3 } else { 200 };
        let count = 1 + dice.below(most);
        params.allowed_token_ids = Some((0..count).map(|_| token(dice)).collect());
    }
    if chance(dice, 30) {
        params.bad_words = (0..1 + dice.below(12)).map(|_| word(dice)).collect();
    }
    if chance(dice, 40) {
        params.stop_token_ids = (0..1 + dice.below(60)).map(|_| token(dice)).collect();
        if let Some(allowed) = &params.allowed_token_ids {
            // With a least number of tokens, a few of these end as they must: nothing may come.
            params.stop_token_ids.extend(allowed.iter().take(4));
        }
    }
    if chance(dice, 30) {
        params.stop = (0..1 + dice.below(3)).map(|_| word(dice)).collect();
        params.include_stop_str_in_output = chance(dice, 50);
    }
    if chance(dice, 40) {
        params.min_tokens = dice.below(u64::from(params.max_tokens.unwrap_or(1)) + 1) as u32;
    }
    params.ignore_eos = chance(dice, 30);
    let top = |dice: &mut Dice| match dice.below(6) {
        0 => TopLogprobs::All,
        at => TopLogprobs::Most([0, 1, 5, 20, 70][at as usize - 1]),
    };
    if chance(dice, 50) {
        params.logprobs = Some(top(dice));
    }
    if chance(dice, 15) {
        params.prompt_logprobs = Some(top(dice));
        // A step has room for one whole vocabulary, which more than 64 take too.
        let much = |wanted: &TopLogprobs| matches!(wanted, TopLogprobs::All | TopLogprobs::Most(65..));
        if [params.logprobs, params.prompt_logprobs].iter().flatten().any(much) {
            params.logprobs = None;
        }
    }
    if chance(dice, 20) {
        params.truncate_prompt_tokens = Some(1 + dice.below(60) as u32);
    }
    if chance(dice, 20) {
        params.repetition_detection =
            Some(RepetitionDetection { max_pattern_size: 5, min_pattern_size: 1, min_count: 2 + dice.below(3) as u32 });
    }
    params.skip_special_tokens = chance(dice, 70);
    params
}

fn random_requests(seed: u64, count: usize, tokenizer: &Tokenizer) -> Vec<Request> {
    let mut dice = Dice(seed);
    let shared: Vec<TokenId> = (0..70).map(|_| dice.below(512) as TokenId).collect();
    let request = |index: usize| {
        let len = 1 + dice.below(if index.is_multiple_of(5) { 120 } else { 40 }) as usize;
        let mut prompt: Vec<TokenId> = (0..len).map(|_| dice.below(512) as TokenId).collect();
        if index.is_multiple_of(3) {
            let common = len.min(shared.len()) * 3 / 4;
            prompt[..common].copy_from_slice(&shared[..common]);
        }
        Request::new(prompt, random_params(&mut dice, tokenizer))
    };
    (0..count).map(request).collect()
}

fn together(llm: &Llm, requests: &[Request]) -> Vec<Outcome> {
    let mut outcomes: Vec<Option<Outcome>> = vec![None; requests.len()];
    llm.run(requests.iter().cloned(), |index, news| {
        if let RunNews::Finished(result) = news {
            outcomes[index] = Some(result.map(Answer::of).map_err(|error| error.to_string()));
        }
        Flow::GoOn
    });
    outcomes.into_iter().map(|outcome| outcome.expect("every request ends")).collect()
}

fn alone(llm: &Llm, requests: &[Request]) -> Vec<Outcome> {
    requests.iter().map(|request| together(llm, std::slice::from_ref(request)).remove(0)).collect()
}

fn compare(name: &str, requests: &[Request], expected: &[Outcome], found: &[Outcome]) -> usize {
    for ((request, expected), found) in requests.iter().zip(expected).zip(found) {
        assert_eq!(found, expected, "{name} changed the answer to {request:?}");
    }
    requests.len()
}

/// What any answer must keep to, whatever the tokens are.
fn check(request: &Request, answer: &Answer, prompt: usize) {
    let params = &request.params;
    for (tokens, _, logprobs, reason) in &answer.outputs {
        let context = format!("{params:?}: {tokens:?}, {reason:?}");
        if let Some(allowed) = &params.allowed_token_ids {
            assert!(tokens.iter().all(|token| allowed.contains(token)), "{context}");
        }
        let early = tokens.iter().take(params.min_tokens as usize);
        assert!(early.into_iter().all(|token| !params.stop_token_ids.contains(token)), "{context}");
        assert!(tokens.len() >= params.min_tokens as usize && tokens.len() <= params.max_tokens.unwrap() as usize);
        check_logprobs(tokens, logprobs, params.logprobs, &context);
    }
    let start = request_tokens(request).len() - prompt;
    let known = &request_tokens(request)[start + 1..];
    check_logprobs(known, &answer.prompt_logprobs, params.prompt_logprobs, "prompt");
}

fn request_tokens(request: &Request) -> &[TokenId] {
    match &request.prompt {
        octavo::Prompt::Tokens(tokens) => tokens,
        octavo::Prompt::Text(text) => panic!("{text} is a text"),
    }
}

fn check_logprobs(tokens: &[TokenId], logprobs: &[Logprob], wanted: Option<TopLogprobs>, context: &str) {
    let most = match wanted {
        None => return assert!(logprobs.is_empty(), "{context}"),
        Some(TopLogprobs::Most(count)) => count as usize,
        Some(TopLogprobs::All) => 515,
    };
    assert_eq!(logprobs.iter().map(|found| found.token).collect::<Vec<_>>(), tokens, "{context}");
    for found in logprobs {
        assert!(found.logprob.is_finite() && found.logprob <= 0.0 && found.rank >= 1, "{context}: {found:?}");
        assert_eq!(found.top.len(), most, "{context}");
        assert!(found.top.is_sorted_by(|(_, a), (_, b)| a >= b), "{context}: {found:?}");
        // The chosen one stands where its rank says, or behind its equals.
        let place = found.top.iter().position(|(token, _)| *token == found.token);
        let likelier = found.top.iter().filter(|(_, logprob)| f64::from(*logprob) > found.logprob + 1e-6).count();
        match place {
            Some(place) => {
                assert!(place + 1 >= found.rank as usize && likelier < found.rank as usize, "{context}: {found:?}")
            }
            None => assert!(found.rank as usize + likelier > most || most == 0, "{context}: {found:?}"),
        }
    }
    if wanted == Some(TopLogprobs::All) {
        for found in logprobs {
            let sum: f64 = found.top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-4, "{context}: probabilities sum to {sum}");
        }
    }
}

/// Checks the answers by themselves, and that they are of many kinds.
fn check_all(requests: &[Request], answers: &[Outcome]) {
    let (mut reasons, mut refused) = (std::collections::BTreeMap::new(), 0);
    for (request, outcome) in requests.iter().zip(answers) {
        match outcome {
            Ok(answer) => {
                let whole = request_tokens(request).len();
                let kept = request.params.truncate_prompt_tokens.map_or(whole, |most| whole.min(most as usize));
                check(request, answer, kept);
                *reasons.entry(answer.outputs[0].3).or_insert(0) += 1;
            }
            Err(error) => {
                assert!(error.contains("forbid"), "{error}: {request:?}");
                refused += 1;
            }
        }
    }
    println!("ends: {reasons:?}, {refused} without an allowed token");
    let both = [FinishReason::Stop, FinishReason::Length].iter().all(|reason| reasons.contains_key(reason));
    assert!(both && refused * 4 < requests.len(), "{reasons:?}, {refused} of {}", requests.len());
}

fn model() -> String {
    golden::path("tiny-llama").to_str().expect("a path in UTF-8").to_owned()
}

#[test]
fn the_same_seed_gives_the_same_answer_on_the_device() {
    let seed = number("OCTAVO_TEST_SEED", std::process::id().into());
    let count = number("OCTAVO_TEST_REQUESTS", 60) as usize;
    println!("OCTAVO_TEST_SEED={seed} OCTAVO_TEST_REQUESTS={count}");
    let plain = Llm::open(model(), options()).unwrap();
    let requests = random_requests(seed, count, plain.engine().tokenizer().unwrap());
    let expected = alone(&plain, &requests);
    check_all(&requests, &expected);

    let mut pairs = compare("a crowd of 12", &requests, &expected, &together(&plain, &requests));
    drop(plain);
    let run_ahead = EngineOptions { sync: false, steps_per_submit: 8, prefix_cache: true, ..options() };
    let swap = EngineOptions { swap_space: 64 << 20, preemption: Preemption::Swap, ..tiny_pool() };
    for (name, options, preempts) in [
        ("run-ahead, eight steps a submission, the prefix cache", run_ahead, false),
        ("fresh recording in lock step", EngineOptions { eager: true, ..options() }, false),
        ("little memory, recomputing", tiny_pool(), true),
        ("little memory, swapping", swap, true),
    ] {
        let llm = Llm::open(model(), options).unwrap();
        pairs += compare(name, &requests, &expected, &together(&llm, &requests));
        let preemptions = llm.engine().metrics().preemptions;
        assert_eq!(preempts, preemptions > 0, "{name}: {preemptions} preemptions");
    }
    println!("{pairs} pairs agreed");
}

#[test]
fn the_same_seed_gives_the_same_answer_in_the_reference() {
    let seed = number("OCTAVO_TEST_SEED", 17);
    let open = |options: EngineOptions| {
        let files = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
        let sizes = ReferenceOptions {
            block_count: options.num_kv_blocks.unwrap() as u32,
            slot_count: CROWD as u32,
            max_batched_tokens: 128,
            max_model_len: CONTEXT as u32,
            max_steps: 4,
        };
        let runner: Box<dyn ModelRunner> = Box::new(ReferenceRunner::new(&files, sizes).unwrap());
        Llm::with_runner(files, options, runner).unwrap()
    };
    let plain = open(options());
    let requests = random_requests(seed, 30, plain.engine().tokenizer().unwrap());
    let expected = alone(&plain, &requests);
    check_all(&requests, &expected);
    let crowded = open(EngineOptions { sync: false, steps_per_submit: 4, ..options() });
    compare("a crowd", &requests, &expected, &together(&crowded, &requests));
    let short = open(tiny_pool());
    compare("little memory", &requests, &expected, &together(&short, &requests));
    assert!(short.engine().metrics().preemptions > 0);
    let device = Llm::open(model(), EngineOptions { kv_dtype: KvDtype::F32, ..options() }).unwrap();
    agree(&requests, &expected, &together(&device, &requests));
}

/// Largest difference of a log-probability that f32 may make.
const TOLERANCE: f64 = 1e-4;

/// The device draws the tokens of the f64 reference: none of these draws, which the seed fixes, is so close that rounding decides.
fn agree(requests: &[Request], expected: &[Outcome], found: &[Outcome]) {
    let (mut tokens, mut worst) = (0, 0.0f64);
    for ((request, expected), found) in requests.iter().zip(expected).zip(found) {
        let (Ok(expected), Ok(found)) = (expected, found) else {
            assert_eq!(found, expected, "{request:?}");
            continue;
        };
        let plain = |answer: &Answer| -> Vec<_> {
            answer.outputs.iter().map(|(tokens, text, _, reason)| (tokens.clone(), text.clone(), *reason)).collect()
        };
        assert_eq!(plain(found), plain(expected), "{request:?}");
        let all = |answer: &Answer| -> Vec<Logprob> {
            let outputs = answer.outputs.iter().flat_map(|(_, _, logprobs, _)| logprobs);
            outputs.chain(&answer.prompt_logprobs).cloned().collect()
        };
        for (found, expected) in all(found).iter().zip(&all(expected)) {
            worst = worst.max((found.logprob - expected.logprob).abs());
            assert!(worst < TOLERANCE, "{found:?}, not {expected:?}");
        }
        tokens += found.outputs.iter().map(|(tokens, ..)| tokens.len()).sum::<usize>();
    }
    println!("{tokens} tokens agree with the reference, log-probabilities to {worst:.1e}");
}
