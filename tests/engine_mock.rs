//! The engine on the mock runner: order, text, cancels in every state, lost devices, full queues, faults, shutting down.
//! The mock knows what any correct schedule must generate, so every test compares tokens with that.

use futures::StreamExt;
use octavo::base::{Epoch, TokenId};
use octavo::config::EngineOptions;
use octavo::engine::{Engine, EngineSettings, Request, RunnerFactory, TokenEvent, TokenStream};
use octavo::error::{Error, ErrorKind};
use octavo::llm::{Flow, Llm, RunNews};
use octavo::model::files::ModelFiles;
use octavo::runner::mock::{Fault, MockOptions, MockRunner};
use octavo::runner::{Capacity, ModelRunner, RunError, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::FinishReason;
use octavo::sched::plan::StepPlan;
use octavo::text::Tokenizer;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

const EOS: TokenId = 2;

fn mock() -> MockOptions {
    let capacity = Capacity {
        block_count: 64,
        slot_count: 8,
        max_batched_tokens: 64,
        max_model_len: 256,
        max_steps: 4,
        vocab_size: 512,
    };
    MockOptions { capacity, eos: EOS, ..MockOptions::default() }
}

fn settings(mock: &MockOptions) -> EngineSettings {
    let mut settings = EngineSettings::for_capacity(mock.capacity);
    settings.end_tokens = vec![EOS];
    settings.rebuild.first_pause = Duration::ZERO;
    settings
}

fn boxed(mock: &MockOptions) -> Box<dyn ModelRunner> {
    Box::new(MockRunner::new(mock.clone()))
}

fn start(mock: &MockOptions) -> Engine {
    Engine::start(boxed(mock), None, None, settings(mock)).unwrap()
}

fn model_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny-llama")
}

fn tokenizer() -> Tokenizer {
    let files = ModelFiles::open(&model_folder()).unwrap();
    Tokenizer::from_file(files.text.tokenizer.as_ref().unwrap()).unwrap()
}

/// A tiny model's tokenizer and spec, with the mock in place of its weights.
fn llm(mock: &MockOptions, options: EngineOptions) -> Llm {
    Llm::with_runner(ModelFiles::open(&model_folder()).unwrap(), options, boxed(mock)).unwrap()
}

fn prompt(seed: u32, len: usize) -> Vec<TokenId> {
    (0..len as u32).map(|i| 3 + (seed * 7919 + i * 104_729) % 500).collect()
}

/// What must come out for greedy `params`.
fn expected(mock: &MockOptions, prompt: &[TokenId], params: &SamplingParams) -> Vec<TokenId> {
    let mut stops = params.stop_token_ids.clone();
    if !params.ignore_eos {
        stops.push(EOS);
    }
    let row = SamplingRow::new(params, params.seed.unwrap_or(0), &stops);
    let room = mock.capacity.max_model_len as usize;
    let limit = params.max_tokens.map_or(room, |max| room.min(prompt.len() + max as usize));
    mock.continuation(prompt, &row, &stops, limit)
}

fn next(stream: &mut TokenStream) -> Option<octavo::error::Result<TokenEvent>> {
    pollster::block_on(stream.next())
}

/// Waits until the engine holds nothing; fails if that does not happen.
fn assert_all_free(engine: &octavo::engine::EngineHandle) {
    // Commands are served in order: once this refusal is back, everything before it has been taken notice of.
    engine.generate(Request::new(Vec::new(), SamplingParams::greedy(1))).unwrap().wait().unwrap_err();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let metrics = engine.metrics();
        let ended = metrics.completed + metrics.cancelled + metrics.failed;
        if (metrics.kv_blocks_used, metrics.running, metrics.waiting, metrics.requests) == (0, 0, 0, ended) {
            return;
        }
        assert!(Instant::now() < deadline, "still held: {metrics:?}");
        std::thread::yield_now();
    }
}

#[test]
fn every_request_gets_its_own_tokens() {
    let mock = MockOptions { eos_per_mille: 20, ..mock() };
    let engine = start(&mock);
    let cases: Vec<_> = (0..40).map(|i| (prompt(i, 1 + 5 * i as usize), SamplingParams::greedy(1 + 2 * i))).collect();
    let streams: Vec<_> = cases.iter().map(|(p, s)| engine.generate(Request::new(&p[..], s.clone())).unwrap()).collect();
    let mut reasons = [0, 0];
    for ((prompt, params), stream) in cases.iter().zip(streams) {
        let output = stream.wait().unwrap();
        let expected = expected(&mock, prompt, params);
        assert_eq!((&output.token_ids, &output.prompt_token_ids), (&expected, prompt));
        assert_eq!(output.usage.output_tokens, expected.len());
        let stopped = expected.last() == Some(&EOS);
        assert_eq!(output.finish_reason, if stopped { FinishReason::Stop } else { FinishReason::Length });
        reasons[usize::from(stopped)] += 1;
        let timings = output.timings;
        assert!(timings.queue <= timings.first_token.unwrap() && timings.first_token.unwrap() <= timings.total);
    }
    assert!(reasons.iter().all(|count| *count > 3), "the cases should end in both ways: {reasons:?}");
    let metrics = engine.metrics();
    assert_eq!((metrics.requests, metrics.completed, metrics.refused), (40, 40, 0));
    assert_eq!(metrics.prompt_tokens, cases.iter().map(|(prompt, _)| prompt.len() as u64).sum::<u64>());
    assert_eq!(metrics.ttft_ms.count, 40);
    assert!(metrics.kv_use_peak > 0.0 && metrics.kv_use_peak <= 1.0);
    assert_all_free(&engine);
}

#[test]
fn without_a_length_the_output_fills_the_context() {
    let mock = mock();
    let engine = start(&mock);
    let output = engine.generate(Request::new(prompt(1, 200), SamplingParams::default())).unwrap().wait().unwrap();
    assert_eq!((output.token_ids.len(), output.finish_reason), (56, FinishReason::Length));
}

#[test]
fn outputs_come_in_the_order_of_the_prompts() {
    let mock = mock();
    // A queue of two, so that most prompts must wait outside.
    let llm = llm(&mock, EngineOptions { max_num_seqs: 3, max_num_batched_tokens: 64, max_waiting: 2, ..Default::default() });
    let prompts: Vec<_> = (0..30).map(|i| prompt(i, 2 + i as usize)).collect();
    // The later ones are the shorter ones, so that they end first.
    let params: Vec<_> = (0..30).map(|i| SamplingParams { ignore_eos: true, ..SamplingParams::greedy(40 - i) }).collect();
    let outputs = llm.generate(prompts.iter().map(|p| &p[..]), params.as_slice()).unwrap();
    for ((prompt, params), output) in prompts.iter().zip(&params).zip(&outputs) {
        assert_eq!(output.token_ids, expected(&mock, prompt, params));
    }
    assert_eq!(outputs.len(), 30);
}

#[test]
fn mismatched_lists_and_bad_prompts_are_named() {
    let llm = llm(&mock(), EngineOptions { max_num_batched_tokens: 64, max_num_seqs: 8, ..Default::default() });
    let params = vec![SamplingParams::greedy(1); 2];
    let message = llm.generate(["a", "b", "c"], params).unwrap_err().to_string();
    assert!(message.contains("3 prompts") && message.contains("2 sampling"), "{message}");
    for bad in [vec![], vec![512], prompt(0, 257)] {
        let prompts = [prompt(1, 4), bad, prompt(2, 4)];
        let error = llm.generate(prompts, SamplingParams::greedy(200)).unwrap_err();
        assert!(error.to_string().starts_with("prompt 1: "), "{error}");
        assert_eq!(error.kind(), ErrorKind::Config);
    }
    // In a run, the others are not disturbed.
    let mut ended = Vec::new();
    let requests = [prompt(1, 4), vec![], prompt(2, 4)].map(|prompt| Request::new(prompt, SamplingParams::greedy(3)));
    llm.run(requests, |index, news| {
        if let RunNews::Finished(result) = news {
            ended.push((index, result.is_ok()));
        }
        Flow::GoOn
    });
    ended.sort_unstable();
    assert_eq!(ended, [(0, true), (1, false), (2, true)]);
    assert_all_free(llm.engine());
}

#[test]
fn streamed_text_equals_the_whole_text_and_end_tokens_have_none() {
    let mock = MockOptions { eos_per_mille: 10, ..mock() };
    let tokenizer = tokenizer();
    let engine = Engine::start(boxed(&mock), None, Some(tokenizer.clone()), settings(&mock)).unwrap();
    for seed in 0..30 {
        let params = SamplingParams::greedy(80);
        let mut stream = engine.generate(Request::new(prompt(seed, 9), params)).unwrap();
        let (mut text, mut tokens, mut end) = (String::new(), Vec::new(), None);
        while let Some(event) = next(&mut stream) {
            assert!(end.is_none(), "nothing follows the end");
            match event.unwrap() {
                TokenEvent::Delta { token_ids, text: new } => {
                    tokens.extend(token_ids);
                    text.push_str(&new);
                }
                TokenEvent::Finished(finished) => end = Some(finished.reason),
                other => panic!("unknown event {other:?}"),
            }
        }
        let shown = if end == Some(FinishReason::Stop) { &tokens[..tokens.len() - 1] } else { &tokens[..] };
        assert_eq!(text, tokenizer.decode(shown, true), "seed {seed}");
    }
}

#[test]
fn stop_texts_end_the_output_wherever_tokens_are_cut() {
    let mock = mock();
    let tokenizer = tokenizer();
    let engine = Engine::start(boxed(&mock), None, Some(tokenizer.clone()), settings(&mock)).unwrap();
    let mut across = 0;
    for seed in 0..40 {
        let prompt = prompt(seed, 5);
        let whole = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(60) };
        let tokens = expected(&mock, &prompt, &whole);
        let text = tokenizer.decode(&tokens, true);
        // A piece out of the middle of the text: it mostly begins inside one token and ends inside another.
        let chars: Vec<char> = text.chars().collect();
        let middle = chars.len() / 2;
        let stop: String = chars[middle..(middle + 4).min(chars.len())].iter().collect();
        let params = SamplingParams { stop: vec![stop.clone()], ..whole };
        let output = engine.generate(Request::new(&prompt[..], params)).unwrap().wait().unwrap();
        let (before, _) = text.split_once(&stop).unwrap();
        assert_eq!((output.text.as_str(), output.finish_reason), (before, FinishReason::Stop), "stop {stop:?}");
        // The tokens go up to the one that completed the stop text.
        assert_eq!(output.token_ids, tokens[..output.token_ids.len()]);
        let kept = &output.token_ids;
        assert!(tokenizer.decode(kept, true).contains(&stop) || stop.contains('\u{fffd}'));
        assert!(!tokenizer.decode(&kept[..kept.len() - 1], true).contains(&stop) || stop.contains('\u{fffd}'));
        let last = tokenizer.decode(&kept[kept.len() - 1..], true);
        across += usize::from(!last.contains(&stop));
    }
    assert!(across > 20, "most stops should span tokens, but only {across} did");
    assert_all_free(&engine);
}

#[test]
fn stop_tokens_end_the_output_and_have_no_text() {
    let mock = mock();
    let tokenizer = tokenizer();
    let engine = Engine::start(boxed(&mock), None, Some(tokenizer.clone()), settings(&mock)).unwrap();
    let free = expected(&mock, &prompt(3, 5), &SamplingParams { ignore_eos: true, ..SamplingParams::greedy(30) });
    let params = SamplingParams { stop_token_ids: vec![free[12]], ignore_eos: true, ..SamplingParams::greedy(30) };
    let output = engine.generate(Request::new(prompt(3, 5), params.clone())).unwrap().wait().unwrap();
    assert_eq!(output.token_ids, expected(&mock, &prompt(3, 5), &params));
    let shown = &output.token_ids[..output.token_ids.len() - 1];
    assert_eq!((output.text, output.finish_reason), (tokenizer.decode(shown, true), FinishReason::Stop));
}

#[test]
fn what_needs_a_tokenizer_is_refused_without_one() {
    let engine = start(&mock());
    let text = engine.generate(Request::new("hello", SamplingParams::greedy(1))).unwrap_err();
    assert!(text.to_string().contains("token ids"), "{text}");
    let params = SamplingParams { stop: vec!["x".into()], ..SamplingParams::greedy(1) };
    let stop = engine.generate(Request::new(prompt(1, 3), params)).unwrap_err();
    assert!(stop.to_string().contains("stop_token_ids"), "{stop}");
}

#[test]
fn a_seed_is_chosen_reported_and_repeats_the_draws() {
    let mock = mock();
    let engine = start(&mock);
    let params = SamplingParams { temperature: 1.0, ..SamplingParams::greedy(20) };
    let run = |params: &SamplingParams| {
        engine.generate(Request::new(prompt(1, 4), params.clone())).unwrap().wait().unwrap()
    };
    let (first, second) = (run(&params), run(&params));
    assert_ne!(first.seed, second.seed);
    assert_ne!(first.token_ids, second.token_ids);
    let again = run(&SamplingParams { seed: Some(first.seed), ..params });
    assert_eq!((again.seed, again.token_ids), (first.seed, first.token_ids));
}

#[test]
fn scores_come_for_all_tokens_but_the_first() {
    let mock = mock();
    let engine = start(&mock);
    let tokens = prompt(5, 256);
    let streams: Vec<_> = [1, 2, 16, 17, 255, 256]
        .map(|len| (len, engine.generate(Request::score(&tokens[..len])).unwrap()))
        .into_iter()
        .collect();
    for (len, stream) in streams {
        let output = stream.wait().unwrap();
        let expected: Vec<f64> = tokens[1..len].iter().map(|token| MockOptions::logprob(*token)).collect();
        assert_eq!((output.prompt_logprobs, output.token_ids.len()), (expected, 0));
    }
    assert_all_free(&engine);
}

#[test]
fn dropped_streams_free_everything_in_every_state() {
    let mock = mock();
    let mut settings = settings(&mock);
    settings.scheduler.max_num_seqs = 2;
    let engine = Engine::start(boxed(&mock), None, None, settings).unwrap();
    let long = || SamplingParams { ignore_eos: true, ..SamplingParams::greedy(200) };
    // Decoding: both have brought tokens. The others wait behind them, or are in their prompts.
    let mut running: Vec<_> = (0..2).map(|i| engine.generate(Request::new(prompt(i, 5), long())).unwrap()).collect();
    for stream in &mut running {
        assert!(matches!(next(stream), Some(Ok(TokenEvent::Delta { .. }))));
    }
    let waiting: Vec<_> = (2..9).map(|i| engine.generate(Request::new(prompt(i, 240), long())).unwrap()).collect();
    drop(running);
    drop(waiting);
    assert_all_free(&engine);
    // At once after submission, in all interleavings that the machine happens to take.
    for round in 0..50 {
        let streams: Vec<_> = (0..6).map(|i| engine.generate(Request::new(prompt(i, 200), long())).unwrap()).collect();
        for _ in 0..round * 20 {
            std::hint::spin_loop();
        }
        drop(streams);
    }
    assert_all_free(&engine);
    // After the end, and with events unread.
    let stream = engine.generate(Request::new(prompt(1, 3), SamplingParams::greedy(4))).unwrap();
    assert_all_free(&engine);
    drop(stream);
    let output = engine.generate(Request::new(prompt(1, 3), SamplingParams::greedy(4))).unwrap().wait().unwrap();
    assert_eq!(output.token_ids, expected(&mock, &prompt(1, 3), &SamplingParams::greedy(4)));
}

#[test]
fn a_cancelled_stream_still_brings_its_end() {
    let endless = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(250) };
    let (gate, runner) = GatedRunner::new(&mock());
    let engine = Engine::start(Box::new(runner), None, None, settings(&mock())).unwrap();
    let one = engine.generate(Request::new(prompt(1, 3), endless.clone())).unwrap();
    let two = engine.generate(Request::new(prompt(2, 3), endless)).unwrap();
    one.cancel();
    assert_eq!(one.wait().unwrap().finish_reason, FinishReason::Cancelled);
    engine.cancel_all();
    assert_eq!(two.wait().unwrap().finish_reason, FinishReason::Cancelled);
    gate.open();
    assert_eq!(engine.metrics().cancelled, 2);
    assert_all_free(&engine);
}

#[test]
fn streams_go_on_after_a_lost_device() {
    let healthy = mock();
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(40) };
    for epoch in 1..20 {
        for fault in [Fault::LostAtSubmit(Epoch(epoch)), Fault::LostAtPoll(Epoch(epoch))] {
            let sick = MockOptions { fault: Some(fault), ..healthy.clone() };
            let after = healthy.clone();
            let rebuild: RunnerFactory = Box::new(move || Ok(boxed(&after)));
            let engine = Engine::start(boxed(&sick), Some(rebuild), None, settings(&healthy)).unwrap();
            let prompts: Vec<_> = (0..10).map(|i| prompt(i, 10 + 9 * i as usize)).collect();
            let streams: Vec<_> =
                prompts.iter().map(|p| engine.generate(Request::new(&p[..], params.clone())).unwrap()).collect();
            for (prompt, stream) in prompts.iter().zip(streams) {
                let output = stream.wait().unwrap_or_else(|error| panic!("{fault:?}: {error}"));
                assert_eq!(output.token_ids, expected(&healthy, prompt, &params), "{fault:?}");
            }
            assert_eq!(engine.metrics().device_recoveries, 1, "{fault:?}");
            assert_all_free(&engine);
        }
    }
}

/// An engine whose device is lost at once, and what its factory does the first times; later it succeeds.
fn losing(results: Vec<octavo::error::Result<MockOptions>>) -> Engine {
    let sick = MockOptions { fault: Some(Fault::LostAtSubmit(Epoch(1))), ..mock() };
    let mut results = results.into_iter();
    let rebuild: RunnerFactory = Box::new(move || results.next().unwrap_or(Ok(mock())).map(|mock| boxed(&mock)));
    Engine::start(boxed(&sick), Some(rebuild), None, settings(&mock())).unwrap()
}

#[test]
fn a_device_that_does_not_come_back_ends_everything_with_its_reason() {
    let refusal = || Err(Error::memory("no adapter is left"));
    let smaller = MockOptions { capacity: Capacity { block_count: 63, ..mock().capacity }, ..mock() };
    let lost_again = MockOptions { fault: Some(Fault::LostAtPoll(Epoch(0))), ..mock() };
    let cases = [
        (vec![refusal(), refusal(), refusal()], "no adapter is left"),
        (vec![Ok(smaller.clone()), Ok(smaller.clone()), Ok(smaller)], "smaller"),
        (vec![Ok(lost_again.clone()), Ok(lost_again.clone()), Ok(lost_again)], "injected"),
    ];
    for (results, reason) in cases {
        let engine = losing(results);
        let streams: Vec<_> = (0..3)
            .filter_map(|i| engine.generate(Request::new(prompt(i, 3), SamplingParams::greedy(4))).ok())
            .collect();
        assert!(!streams.is_empty());
        for stream in streams {
            let error = stream.wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DeviceLost);
            assert!(error.to_string().contains(reason), "{error}");
        }
        let refused = engine.generate(Request::new(prompt(1, 3), SamplingParams::greedy(4))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::DeviceLost);
    }
}

#[test]
fn a_device_that_comes_back_at_the_last_attempt_serves_on() {
    let engine = losing(vec![Err(Error::memory("not yet")), Err(Error::memory("not yet"))]);
    let output = engine.generate(Request::new(prompt(1, 3), SamplingParams::greedy(4))).unwrap().wait().unwrap();
    assert_eq!(output.token_ids, expected(&mock(), &prompt(1, 3), &SamplingParams::greedy(4)));
}

#[test]
fn a_lost_device_without_a_factory_ends_the_engine() {
    let sick = MockOptions { fault: Some(Fault::LostAtPoll(Epoch(3))), ..mock() };
    let engine = start(&sick);
    let error = engine.generate(Request::new(prompt(1, 3), SamplingParams::greedy(90))).unwrap().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceLost);
}

#[test]
fn faults_of_the_runner_fail_the_streams_and_refuse_later_requests() {
    let bug = MockOptions { fault: Some(Fault::BugAtSubmit(Epoch(4))), ..mock() };
    let runners: [Box<dyn ModelRunner>; 2] = [boxed(&bug), Box::new(PanickingRunner { calls: 0, inner: boxed(&mock()) })];
    for runner in runners {
        let engine = Engine::start(runner, None, None, settings(&mock())).unwrap();
        let endless = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(250) };
        let streams: Vec<_> = (0..3).map(|i| engine.generate(Request::new(prompt(i, 3), endless.clone()))).collect();
        for stream in streams.into_iter().flatten() {
            let error = stream.wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Bug);
            assert!(error.to_string().contains("injected"), "{error}");
        }
        let refused = engine.generate(Request::new(prompt(1, 3), endless)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Bug);
    }
}

#[test]
fn bad_logits_fail_their_request_only() {
    let mock = MockOptions { bad_logits_per_mille: 30, ..mock() };
    let engine = start(&mock);
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(20) };
    let prompts: Vec<_> = (0..30).map(|i| prompt(i, 4)).collect();
    let streams: Vec<_> = prompts.iter().map(|p| engine.generate(Request::new(&p[..], params.clone())).unwrap()).collect();
    let mut failed = 0;
    for (prompt, stream) in prompts.iter().zip(streams) {
        let expected = expected(&mock, prompt, &params);
        match stream.wait() {
            Ok(output) => assert_eq!(output.token_ids, expected),
            Err(error) => {
                assert!(expected.len() < 20 && error.to_string().contains("not finite"), "{error}");
                failed += 1;
            }
        }
    }
    assert!((1..30).contains(&failed), "{failed} of 30 failed");
    assert_eq!(engine.metrics().failed, failed);
    assert_all_free(&engine);
}

#[test]
fn a_full_queue_refuses_and_takes_again_when_there_is_room() {
    let (gate, runner) = GatedRunner::new(&mock());
    let mut settings = settings(&mock());
    settings.max_waiting = 2;
    settings.scheduler.max_num_seqs = 1;
    let engine = Engine::start(Box::new(runner), None, None, settings).unwrap();
    let request = |i| Request::new(prompt(i, 3), SamplingParams::greedy(4));
    let mut streams = vec![engine.generate(request(0)).unwrap()];
    // Once it is on the device, it no longer waits.
    gate.wait_for_submission();
    streams.extend((1..3).map(|i| engine.generate(request(i)).unwrap()));
    let refused = engine.generate(request(3)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(refused.to_string().contains("max_waiting is 2"), "{refused}");
    gate.open();
    for stream in streams {
        assert_eq!(stream.wait().unwrap().finish_reason, FinishReason::Length);
    }
    assert!(engine.generate(request(3)).unwrap().wait().is_ok());
}

#[test]
fn shutting_down_ends_live_requests_and_refuses_new_ones() {
    let (gate, runner) = GatedRunner::new(&mock());
    let engine = Engine::start(Box::new(runner), None, None, settings(&mock())).unwrap();
    let handle = engine.handle().clone();
    let mut streams: Vec<_> =
        (0..20).map(|i| handle.generate(Request::new(prompt(i, 50), SamplingParams::greedy(100))).unwrap()).collect();
    gate.wait_for_submission();
    let opener = std::thread::spawn(move || gate.open());
    drop(engine);
    opener.join().unwrap();
    for stream in &mut streams {
        let last = std::iter::from_fn(|| next(stream)).last().unwrap();
        // What had time to end has ended; everything else was told why.
        assert!(matches!(&last, Err(error) if error.kind() == ErrorKind::Cancelled) || matches!(&last, Ok(TokenEvent::Finished(_))));
        assert!(next(stream).is_none());
    }
    let refused = handle.generate(Request::new(prompt(1, 3), SamplingParams::greedy(1))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Cancelled);
}

#[test]
fn a_hung_device_does_not_hang_the_shutdown() {
    let (gate, runner) = GatedRunner::new(&mock());
    let mut settings = settings(&mock());
    settings.shutdown_deadline = Duration::from_millis(20);
    let engine = Engine::start(Box::new(runner), None, None, settings).unwrap();
    let stream = engine.generate(Request::new(prompt(1, 3), SamplingParams::greedy(4))).unwrap();
    gate.wait_for_submission();
    drop(engine);
    assert_eq!(stream.wait().unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn the_second_turn_of_a_conversation_is_served_from_the_cache() {
    let mock = mock();
    let engine = start(&mock);
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(40) };
    let first = engine.generate(Request::new(prompt(1, 100), params.clone())).unwrap().wait().unwrap();
    let turn: Vec<TokenId> = [prompt(1, 100), first.token_ids, prompt(2, 10)].concat();
    let second = engine.generate(Request::new(&turn[..], params.clone())).unwrap().wait().unwrap();
    // 139 tokens of the first turn have KV (the last generated one was never an input): 8 whole blocks.
    assert_eq!((first.usage.cached_tokens, second.usage.cached_tokens), (0, 128));
    assert_eq!(second.token_ids, expected(&mock, &turn, &params));
    let salted = Request { cache_salt: Some("another tenant".into()), ..Request::new(&turn[..], params) };
    assert_eq!(engine.generate(salted).unwrap().wait().unwrap().usage.cached_tokens, 0);
}

#[test]
fn the_engine_is_shared_between_threads() {
    let mock = mock();
    let engine = start(&mock);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (handle, mock) = (engine.handle().clone(), &mock);
            scope.spawn(move || {
                for round in 0..10 {
                    let (prompt, params) = (prompt(thread * 100 + round, 20), SamplingParams::greedy(15));
                    let output = handle.generate(Request::new(&prompt[..], params.clone())).unwrap().wait().unwrap();
                    assert_eq!(output.token_ids, expected(mock, &prompt, &params));
                }
            });
        }
    });
    assert_all_free(&engine);
}

/// Panics at its third submission.
struct PanickingRunner {
    calls: u32,
    inner: Box<dyn ModelRunner>,
}

impl ModelRunner for PanickingRunner {
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), RunError> {
        self.calls += 1;
        assert!(self.calls < 3, "injected panic");
        self.inner.submit(plan)
    }

    fn poll(&mut self, wait: Wait, result: &mut StepResult) -> Result<bool, RunError> {
        self.inner.poll(wait, result)
    }
}

/// A runner whose results come only once the gate is open.
struct GatedRunner {
    inner: MockRunner,
    state: Arc<(Mutex<bool>, Condvar)>,
    submitted: mpsc::Sender<()>,
}

struct Gate {
    state: Arc<(Mutex<bool>, Condvar)>,
    submitted: mpsc::Receiver<()>,
}

impl GatedRunner {
    fn new(mock: &MockOptions) -> (Gate, Self) {
        let state: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let (sender, submitted) = mpsc::channel();
        let runner = Self { inner: MockRunner::new(mock.clone()), state: state.clone(), submitted: sender };
        (Gate { state, submitted }, runner)
    }
}

impl Gate {
    fn open(&self) {
        *self.state.0.lock().unwrap() = true;
        self.state.1.notify_all();
    }

    fn wait_for_submission(&self) {
        self.submitted.recv_timeout(Duration::from_secs(20)).unwrap();
    }
}

impl ModelRunner for GatedRunner {
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), RunError> {
        // The test may not be interested.
        let _ = self.submitted.send(());
        self.inner.submit(plan)
    }

    fn poll(&mut self, wait: Wait, result: &mut StepResult) -> Result<bool, RunError> {
        let limit = match wait {
            Wait::No => Duration::ZERO,
            Wait::AtMost(limit) => limit,
        };
        let open = self.state.0.lock().unwrap();
        let (open, _) = self.state.1.wait_timeout_while(open, limit, |open| !*open).unwrap();
        if *open { self.inner.poll(wait, result) } else { Ok(false) }
    }
}
