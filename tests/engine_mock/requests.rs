//! Requests from submission to end: tokens, order, seeds, scores, cache, full queues, cancels in every state.

use super::*;

#[test]
fn every_request_gets_its_own_tokens() {
    let mock = MockOptions { eos_per_mille: 20, ..mock() };
    let engine = start(&mock);
    let cases: Vec<_> = (0..40).map(|i| (prompt(i, 1 + 5 * i as usize), SamplingParams::greedy(1 + 2 * i))).collect();
    let streams: Vec<_> =
        cases.iter().map(|(p, s)| engine.generate(Request::new(&p[..], s.clone())).unwrap()).collect();
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
    let llm =
        llm(&mock, EngineOptions { max_num_seqs: 3, max_num_batched_tokens: 64, max_waiting: 2, ..Default::default() });
    let prompts: Vec<_> = (0..30).map(|i| prompt(i, 2 + i as usize)).collect();
    // The later ones are the shorter ones, so that they end first.
    let params: Vec<_> =
        (0..30).map(|i| SamplingParams { ignore_eos: true, ..SamplingParams::greedy(40 - i) }).collect();
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
fn a_seed_is_chosen_reported_and_repeats_the_draws() {
    let mock = mock();
    let engine = start(&mock);
    let params = SamplingParams { temperature: 1.0, ..SamplingParams::greedy(20) };
    let run =
        |params: &SamplingParams| engine.generate(Request::new(prompt(1, 4), params.clone())).unwrap().wait().unwrap();
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
        let found: Vec<f64> = output.prompt_logprobs.iter().map(|token| token.logprob).collect();
        assert_eq!((found, output.token_ids.len()), (expected, 0));
    }
    assert_all_free(&engine);
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
fn dropped_streams_are_cancelled_and_not_run_to_their_end() {
    let (gate, runner) = GatedRunner::new(&mock());
    let mut settings = settings(&mock());
    settings.scheduler.max_num_seqs = 2;
    let engine = Engine::start(Box::new(runner), None, None, settings).unwrap();
    // Nothing can end while the gate is closed: two are on the device, five wait.
    let streams: Vec<_> =
        (0..7).map(|i| engine.generate(Request::new(prompt(i, 20), SamplingParams::greedy(2))).unwrap()).collect();
    gate.wait_for_submission();
    drop(streams);
    gate.open();
    assert_all_free(&engine);
    assert_eq!((engine.metrics().cancelled, engine.metrics().completed), (7, 0));
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
