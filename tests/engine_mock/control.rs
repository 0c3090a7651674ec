//! Several outputs of one request, urgency, pauses, draining, resets, traces.

use super::*;
use octavo::sched::{Pause, Policy, Preemption, SchedulerConfig};
use octavo::trace::{Replayed, TraceReader, replay};

fn sampled(n: u32, seed: u64, max_tokens: u32) -> SamplingParams {
    SamplingParams { n, seed: Some(seed), temperature: 1.0, ..SamplingParams::greedy(max_tokens) }
}

#[test]
fn several_outputs_are_those_of_single_requests_with_the_seeds_that_follow() {
    for preemption in [Preemption::Recompute, Preemption::Swap] {
        let mut mock = MockOptions { eos_per_mille: 10, ..mock() };
        (mock.capacity.block_count, mock.capacity.host_blocks) = (16, 32);
        let mut settings = settings(&mock);
        settings.scheduler = SchedulerConfig { preemption, ..settings.scheduler };
        let engine = Engine::start(boxed(&mock), None, None, settings).unwrap();
        let cases: Vec<_> = (0..6u32).map(|i| (prompt(i, 20 + 7 * i as usize), 1 + i % 4, 40 + i)).collect();
        let ask = |(prompt, n, max): &(Vec<TokenId>, u32, u32)| {
            engine.generate(Request::new(&prompt[..], sampled(*n, 1000, *max))).unwrap()
        };
        let streams: Vec<_> = cases.iter().map(ask).collect();
        for ((prompt, n, max), stream) in cases.iter().zip(streams) {
            let output = stream.wait().unwrap();
            let single = |seed| expected(&mock, prompt, &sampled(1, seed, *max));
            assert_eq!((&output.token_ids, output.seed), (&single(1000), 1000));
            assert_eq!(output.alternatives.len(), *n as usize - 1);
            for (seed, other) in (1001..).zip(&output.alternatives) {
                assert_eq!((&other.token_ids, other.seed), (&single(seed), seed));
            }
            let generated = output.alternatives.iter().map(|other| other.token_ids.len()).sum::<usize>();
            assert_eq!(output.usage.output_tokens, output.token_ids.len() + generated);
        }
        assert!(engine.metrics().preemptions > 0);
        assert_all_free(&engine);
    }
}

#[test]
fn dropping_a_request_ends_all_its_outputs() {
    let mock = mock();
    let engine = start(&mock);
    let mut stream = engine.generate(Request::new(prompt(1, 30), sampled(5, 7, 200))).unwrap();
    assert!(matches!(next(&mut stream), Some(Ok(TokenEvent::Delta { .. }))));
    drop(stream);
    assert_all_free(&engine);
    assert_eq!(engine.metrics().cancelled, 1);
}

#[test]
fn impossible_wishes_are_refused_at_the_door() {
    let engine = start(&mock());
    let greedy = SamplingParams { n: 3, ..SamplingParams::greedy(5) };
    let late = Request { deadline: Some(Instant::now()), ..Request::new(prompt(1, 5), SamplingParams::greedy(5)) };
    let scored = Request { params: sampled(2, 1, 1), ..Request::score(prompt(1, 5)) };
    std::thread::sleep(Duration::from_millis(2));
    for (request, part) in
        [(Request::new(prompt(1, 5), greedy), "n is 3"), (late, "the deadline was"), (scored, "n is 2")]
    {
        let error = engine.generate(request).unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(part), "{error}");
    }
    let salted = Request { cache_salt: Some(String::new()), ..Request::new(prompt(1, 5), SamplingParams::greedy(5)) };
    let error = engine.generate(salted).unwrap().wait().unwrap_err();
    assert!(error.to_string().contains("cache_salt is empty"), "{error}");
}

#[test]
fn urgent_requests_pass_the_others() {
    let mock = mock();
    let mut settings = settings(&mock);
    settings.scheduler = SchedulerConfig { policy: Policy::Priority, max_num_seqs: 1, ..settings.scheduler };
    let engine = Engine::start(boxed(&mock), None, None, settings).unwrap();
    engine.pause(Pause::All);
    let ask = |priority| {
        let request = Request { priority, ..Request::new(prompt(1, 9), SamplingParams::greedy(20)) };
        engine.generate(request).unwrap()
    };
    let (normal, urgent) = (ask(0), ask(-1));
    engine.resume();
    let (normal, urgent) = (normal.wait().unwrap(), urgent.wait().unwrap());
    assert!(urgent.timings.queue < normal.timings.queue);
}

#[test]
fn a_pause_holds_everything_and_nothing_is_lost() {
    let mock = mock();
    let engine = start(&mock);
    let mut running = engine.generate(Request::new(prompt(1, 9), SamplingParams::greedy(100))).unwrap();
    assert!(matches!(next(&mut running), Some(Ok(_))));
    engine.pause(Pause::All);
    let waiting = engine.generate(Request::new(prompt(2, 9), SamplingParams::greedy(10))).unwrap();
    let cancelled = engine.generate(Request::new(prompt(3, 9), SamplingParams::greedy(10))).unwrap();
    // Cancels are served while paused.
    cancelled.cancel();
    assert_eq!(cancelled.wait().unwrap().finish_reason, FinishReason::Cancelled);
    engine.resume();
    let expected = expected(&mock, &prompt(2, 9), &SamplingParams::greedy(10));
    assert_eq!(waiting.wait().unwrap().token_ids, expected);
    assert_eq!(running.wait().unwrap().usage.output_tokens, 100);
}

#[test]
fn draining_lets_all_end_and_takes_nobody_new() {
    let mock = mock();
    let engine = start(&mock);
    let streams: Vec<_> =
        (0..12).map(|i| engine.generate(Request::new(prompt(i, 9), SamplingParams::greedy(50))).unwrap()).collect();
    assert_eq!(engine.drain(Duration::from_secs(60)).unwrap(), 0);
    let refused = engine.generate(Request::new(prompt(1, 9), SamplingParams::greedy(5))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    for stream in streams {
        assert_eq!(stream.wait().unwrap().usage.output_tokens, 50);
    }
    engine.resume();
    engine.generate(Request::new(prompt(1, 9), SamplingParams::greedy(5))).unwrap().wait().unwrap();
}

#[test]
fn resuming_ends_a_drain_before_its_time() {
    let mock = mock();
    let engine = start(&mock);
    engine.pause(Pause::All);
    let waiting = engine.generate(Request::new(prompt(1, 9), SamplingParams::greedy(5))).unwrap();
    let handle = engine.handle().clone();
    let first = std::thread::spawn(move || handle.drain(Duration::MAX).unwrap());
    let handle = engine.handle().clone();
    let second = std::thread::spawn(move || handle.drain(Duration::from_secs(3600)).unwrap());
    while engine.generate(Request::new(prompt(2, 9), SamplingParams::greedy(5))).is_ok() {}
    std::thread::sleep(Duration::from_millis(20));
    engine.resume();
    assert_eq!((first.join().unwrap(), second.join().unwrap()), (0, 0));
    assert_eq!(waiting.wait().unwrap().usage.output_tokens, 5);
    engine.generate(Request::new(prompt(1, 9), SamplingParams::greedy(5))).unwrap().wait().unwrap();
}

#[test]
fn draining_cancels_what_its_time_does_not_suffice_for() {
    let mock = mock();
    let engine = start(&mock);
    engine.pause(Pause::All);
    let streams: Vec<_> =
        (0..3).map(|i| engine.generate(Request::new(prompt(i, 9), SamplingParams::greedy(50))).unwrap()).collect();
    assert_eq!(engine.drain(Duration::from_millis(20)).unwrap(), 3);
    for stream in streams {
        assert_eq!(stream.wait().unwrap().finish_reason, FinishReason::Cancelled);
    }
    assert_eq!(engine.shut_down(Duration::ZERO), 0);
}

#[test]
fn a_reset_empties_the_cache_and_running_requests_go_on() {
    let mock = mock();
    let (gate, runner) = GatedRunner::new(&mock);
    let engine = Engine::start(Box::new(runner), None, None, settings(&mock)).unwrap();
    gate.open();
    let ask = |max| engine.generate(Request::new(prompt(1, 60), SamplingParams::greedy(max))).unwrap();
    ask(2).wait().unwrap();
    assert!(ask(2).wait().unwrap().usage.cached_tokens > 0);
    engine.reset_prefix_cache(false).unwrap();
    let output = ask(2).wait().unwrap();
    assert_eq!(output.usage.cached_tokens, 0);
    gate.close();
    let running = ask(150);
    gate.wait_for_submission();
    let refused = engine.reset_prefix_cache(false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    engine.reset_prefix_cache(true).unwrap();
    gate.open();
    let output = running.wait().unwrap();
    assert!(output.usage.preemptions > 0);
    assert_eq!(output.token_ids, expected(&mock, &prompt(1, 60), &SamplingParams::greedy(150)));
}

#[test]
fn a_trace_of_a_busy_engine_replays_plan_for_plan() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    let mut mock = MockOptions { eos_per_mille: 5, fault: Some(Fault::LostAtPoll(Epoch(40))), ..mock() };
    (mock.capacity.block_count, mock.capacity.host_blocks) = (20, 20);
    let mut settings = settings(&mock);
    settings.scheduler.preemption = Preemption::Swap;
    settings.trace = Some(path.clone());
    let healthy = MockOptions { fault: None, ..mock.clone() };
    let rebuild: RunnerFactory = Box::new(move || Ok(boxed(&healthy)));
    let engine = Engine::start(boxed(&mock), Some(rebuild), None, settings).unwrap();
    let streams: Vec<_> = (0..20)
        .map(|i| engine.generate(Request::new(prompt(i, 10 + 3 * i as usize), sampled(1 + i % 3, 5, 60))).unwrap())
        .collect();
    streams[3].cancel();
    for stream in streams {
        stream.wait().unwrap();
    }
    assert_eq!(engine.metrics().device_recoveries, 1);
    engine.reset_prefix_cache(true).unwrap();
    drop(engine);
    let mut reader = TraceReader::open(&path).unwrap();
    match replay(&mut reader).unwrap() {
        Replayed::Same(summary) => assert!(summary.plans > 50, "{summary:?}"),
        other => panic!("{other:?}"),
    }
}
