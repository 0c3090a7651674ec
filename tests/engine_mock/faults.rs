//! What goes wrong: lost devices, faulty runners, bad logits, shutting down with requests alive.

use super::*;

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

/// A request that kills every device, each time after a few steps that went well, must come to an end too.
#[test]
fn a_request_that_kills_every_device_ends() {
    let dying = |epoch| MockOptions { fault: Some(Fault::LostAtSubmit(Epoch(epoch))), ..mock() };
    let mut epoch = 3;
    let rebuild: RunnerFactory = Box::new(move || {
        epoch += 3;
        Ok(boxed(&dying(epoch)))
    });
    let engine = Engine::start(boxed(&dying(3)), Some(rebuild), None, settings(&mock())).unwrap();
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(90) };
    let error = engine.generate(Request::new(prompt(1, 3), params)).unwrap().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceLost);
    assert!(error.to_string().contains("3 attempts"), "{error}");
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
    let runners: [Box<dyn ModelRunner>; 2] =
        [boxed(&bug), Box::new(PanickingRunner { calls: 0, inner: boxed(&mock()) })];
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
    let streams: Vec<_> =
        prompts.iter().map(|p| engine.generate(Request::new(&p[..], params.clone())).unwrap()).collect();
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
        assert!(
            matches!(&last, Err(error) if error.kind() == ErrorKind::Cancelled)
                || matches!(&last, Ok(TokenEvent::Finished(_)))
        );
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
