//! What the runner prepares while nobody wants anything.

use super::runners::{Asked, PreparingRunner};
use super::*;

#[test]
fn preparing_gives_way_to_requests_after_the_piece_in_work_and_ends() {
    let mock = mock();
    let (asked, pass, runner) = PreparingRunner::new(&mock, 4);
    let engine = Engine::start(Box::new(runner), None, None, settings(&mock)).unwrap();
    let next = || asked.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(next(), Asked::Prepare);
    pass.send(()).unwrap();
    // In the midst of the second piece a request comes.
    assert_eq!(next(), Asked::Prepare);
    let (prompt, params) = (prompt(1, 9), SamplingParams { ignore_eos: true, ..SamplingParams::greedy(20) });
    let stream = engine.generate(Request::new(&prompt[..], params.clone())).unwrap();
    pass.send(()).unwrap();
    assert_eq!(next(), Asked::Submit);
    let output = stream.wait().unwrap();
    assert_eq!(output.token_ids, expected(&mock, &prompt, &params));
    // Nothing is prepared as long as there is work; then the rest is, to its end.
    let submissions = std::iter::repeat_with(next).take_while(|asked| *asked == Asked::Submit).count();
    assert!(submissions > 1, "{submissions}");
    pass.send(()).unwrap();
    assert_eq!(next(), Asked::Prepare);
    pass.send(()).unwrap();
    let output = engine.generate(Request::new(&prompt[..], params.clone())).unwrap().wait().unwrap();
    assert_eq!(output.token_ids, expected(&mock, &prompt, &params));
    assert!(asked.try_iter().all(|asked| asked == Asked::Submit), "the end was the end");
    assert_all_free(&engine);
}

#[test]
fn a_device_that_is_lost_while_preparing_is_replaced() {
    struct Dying(MockRunner);
    impl ModelRunner for Dying {
        fn capacity(&self) -> Capacity {
            self.0.capacity()
        }
        fn prepare(&mut self) -> Result<octavo::runner::Prepared, RunError> {
            Err(RunError::DeviceLost("while nobody looked".into()))
        }
        fn submit(&mut self, plan: &StepPlan) -> Result<(), RunError> {
            self.0.submit(plan)
        }
        fn poll(&mut self, wait: Wait, result: &mut StepResult) -> Result<bool, RunError> {
            self.0.poll(wait, result)
        }
    }
    let mock = mock();
    let after = mock.clone();
    let rebuild: RunnerFactory = Box::new(move || Ok(boxed(&after)));
    let dying = Box::new(Dying(MockRunner::new(mock.clone())));
    let engine = Engine::start(dying, Some(rebuild), None, settings(&mock)).unwrap();
    let (prompt, params) = (prompt(2, 5), SamplingParams::greedy(6));
    // Before or after the loss, whichever comes first.
    let output = engine.generate(Request::new(&prompt[..], params.clone())).unwrap().wait().unwrap();
    assert_eq!(output.token_ids, expected(&mock, &prompt, &params));
    let deadline = Instant::now() + Duration::from_secs(20);
    while engine.metrics().device_recoveries == 0 {
        assert!(Instant::now() < deadline, "nobody noticed");
        std::thread::yield_now();
    }
    let output = engine.generate(Request::new(&prompt[..], params.clone())).unwrap().wait().unwrap();
    assert_eq!(output.token_ids, expected(&mock, &prompt, &params));
}
