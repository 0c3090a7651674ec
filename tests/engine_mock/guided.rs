//! Requests with a constraint, guided by scripts in place of a grammar engine: the mock's tokens are known, so a script can allow
//! them, force them, or go wrong where it likes.

use super::*;
use octavo::sampling::guide::{GuideCompiler, TokenGuide};
use octavo::sampling::{Constraint, Whitespace};
use std::sync::{Arc, Mutex, mpsc};

/// What a script does after so many accepted tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Line {
    /// Everything may come.
    Open,
    /// Only this may come.
    Only(TokenId),
    /// The output may end, or go on with this.
    End(TokenId),
    /// The output is complete.
    Done,
    Fail,
    Panic,
}

#[derive(Clone)]
struct Script {
    lines: Arc<Vec<Line>>,
    accepted: Vec<TokenId>,
}

impl Script {
    fn line(&self) -> Line {
        self.lines.get(self.accepted.len()).copied().unwrap_or(Line::Open)
    }
}

impl TokenGuide for Script {
    fn fill_mask(&mut self, mask: &mut [u32]) -> octavo::error::Result<()> {
        match self.line() {
            Line::Open => mask.fill(u32::MAX),
            Line::Only(token) | Line::End(token) => octavo::sampling::lists::fill_mask(mask, &[token]),
            Line::Fail => return Err(Error::config("nothing may come next")),
            Line::Panic => panic!("a script may panic"),
            Line::Done => unreachable!("nobody asks for a mask after the end"),
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> octavo::error::Result<()> {
        self.accepted.push(token);
        Ok(())
    }

    fn may_end(&mut self) -> octavo::error::Result<bool> {
        Ok(matches!(self.line(), Line::Done | Line::End(_)))
    }

    fn is_done(&self) -> bool {
        self.line() == Line::Done
    }

    fn rollback(&mut self, tokens: usize) -> octavo::error::Result<()> {
        self.accepted.truncate(self.accepted.len() - tokens);
        Ok(())
    }

    fn fork(&self) -> Box<dyn TokenGuide> {
        Box::new(self.clone())
    }
}

/// Compiles the regex "n" to script n; waits for a word first if there is somebody to give it.
struct Scripts {
    scripts: Vec<Arc<Vec<Line>>>,
    gate: Option<Mutex<mpsc::Receiver<()>>>,
}

impl GuideCompiler for Scripts {
    fn compile(&self, constraint: &Constraint, _: Whitespace) -> octavo::error::Result<Box<dyn TokenGuide>> {
        let Constraint::Regex(number) = constraint else { return Err(Error::config("only scripts are known here")) };
        if let Some(gate) = &self.gate {
            gate.lock().unwrap().recv().unwrap();
        }
        let number: usize = number.parse().map_err(|_| Error::config(format!("{number} is no script")))?;
        Ok(Box::new(Script { lines: self.scripts[number].clone(), accepted: Vec::new() }))
    }
}

fn guided_engine(mock: &MockOptions, scripts: Vec<Vec<Line>>, gate: Option<mpsc::Receiver<()>>) -> Engine {
    let mut settings = settings(mock);
    let scripts = scripts.into_iter().map(Arc::new).collect();
    settings.guides = Some(Arc::new(Scripts { scripts, gate: gate.map(Mutex::new) }));
    Engine::start(boxed(mock), None, None, settings).unwrap()
}

fn follow(script: usize, max_tokens: u32) -> SamplingParams {
    SamplingParams { constraint: Some(Constraint::Regex(script.to_string())), ..SamplingParams::greedy(max_tokens) }
}

/// Forces the tokens of `expected` at `places` and leaves the others open.
fn forcing(expected: &[TokenId], places: &[usize]) -> Vec<Line> {
    let line = |(at, token): (usize, &TokenId)| if places.contains(&at) { Line::Only(*token) } else { Line::Open };
    expected.iter().enumerate().map(line).collect()
}

#[test]
fn tokens_are_the_same_with_and_without_tokens_that_need_no_model() {
    let mock = mock();
    let params = SamplingParams::greedy(40);
    let prompts: Vec<_> = (0..6).map(|index| prompt(index, 5 + 9 * index as usize)).collect();
    let wanted: Vec<_> = prompts.iter().map(|prompt| expected(&mock, prompt, &params)).collect();
    let places: [&[usize]; 6] =
        [&[], &[0], &[3, 4, 5], &[0, 1, 2, 20, 21], &[39], &[10, 12, 14, 16, 17, 18, 19, 20, 21, 22]];
    let scripts = wanted.iter().zip(places).map(|(tokens, places)| forcing(tokens, places)).collect();
    let engine = guided_engine(&mock, scripts, None);
    // All at once, each between two that are not guided.
    let streams: Vec<_> = prompts
        .iter()
        .enumerate()
        .flat_map(|(index, prompt)| [follow(index, 40), params.clone()].map(|params| (prompt.clone(), params)))
        .map(|(prompt, params)| engine.generate(Request::new(prompt, params)).unwrap())
        .collect();
    for (index, stream) in streams.into_iter().enumerate() {
        let output = stream.wait().unwrap();
        assert_eq!(output.token_ids, wanted[index / 2], "request {index}");
        assert_eq!(output.usage.output_tokens, wanted[index / 2].len());
    }
    assert_all_free(&engine);
}

#[test]
fn forced_tokens_take_no_steps_unless_their_logprobs_are_wanted() {
    let mock = mock();
    let prompt = prompt(1, 8);
    let wanted = expected(&mock, &prompt, &SamplingParams::greedy(33));
    let steps = |logprobs| {
        let engine = guided_engine(&mock, vec![forcing(&wanted, &(1..32).collect::<Vec<_>>())], None);
        let params = SamplingParams { logprobs, ..follow(0, 33) };
        let output = engine.generate(Request::new(prompt.clone(), params)).unwrap().wait().unwrap();
        assert_eq!(output.token_ids, wanted);
        engine.metrics().steps
    };
    assert_eq!(steps(None), 2, "the first token, and the last together with all between");
    assert_eq!(steps(Some(octavo::sampling::TopLogprobs::Most(0))), 33);
}

#[test]
fn several_outputs_go_their_own_ways() {
    let mock = mock();
    let engine = guided_engine(&mock, vec![vec![Line::Open]], None);
    let free = SamplingParams { temperature: 1.0, seed: Some(5), n: 3, ..SamplingParams::greedy(20) };
    let led = SamplingParams { constraint: Some(Constraint::Regex("0".into())), ..free.clone() };
    let [free, led] = [free, led].map(|params| engine.generate(Request::new(prompt(3, 20), params)).unwrap());
    let (free, led) = (free.wait().unwrap(), led.wait().unwrap());
    assert_eq!(free.token_ids, led.token_ids);
    let tokens = |output: &octavo::engine::RequestOutput| -> Vec<_> {
        output.alternatives.iter().map(|other| other.token_ids.clone()).collect()
    };
    assert_eq!(tokens(&free), tokens(&led));
    assert_ne!(tokens(&free)[0], tokens(&free)[1]);
}

#[test]
fn a_complete_output_ends_at_once() {
    let mock = mock();
    let prompt = prompt(2, 6);
    let wanted = expected(&mock, &prompt, &SamplingParams::greedy(20));
    // Once after a sampled token, once after a forced one.
    let mut forced = forcing(&wanted, &[4, 5]);
    forced[6] = Line::Done;
    let engine = guided_engine(&mock, vec![[vec![Line::Open; 3], vec![Line::Done]].concat(), forced], None);
    for (script, tokens) in [(0, 3), (1, 6)] {
        let output = engine.generate(Request::new(prompt.clone(), follow(script, 20))).unwrap().wait().unwrap();
        assert_eq!(output.token_ids, wanted[..tokens]);
        assert_eq!(output.finish_reason, FinishReason::Stop);
    }
    assert_all_free(&engine);
}

#[test]
fn a_prompt_is_scored_even_if_the_output_needs_no_model() {
    let mock = mock();
    let prompt = prompt(2, 6);
    let wanted = expected(&mock, &prompt, &SamplingParams::greedy(3));
    let engine = guided_engine(&mock, vec![forcing(&wanted, &[0, 1, 2])], None);
    let params = follow(0, 3).prompt_logprobs(2);
    let output = engine.generate(Request::new(prompt.clone(), params)).unwrap().wait().unwrap();
    assert_eq!((output.token_ids, output.prompt_logprobs.len()), (wanted, 5));
}

#[test]
fn an_output_that_fails_takes_its_siblings_along() {
    let lines = Arc::new(vec![Line::Fail]);
    let mut settings = settings(&mock());
    settings.guides = Some(Arc::new(Scripts { scripts: vec![lines.clone()], gate: None }));
    let engine = Engine::start(boxed(&mock()), None, None, settings).unwrap();
    let params = SamplingParams { temperature: 1.0, n: 3, ..follow(0, 5) };
    let error = engine.generate(Request::new(prompt(1, 5), params)).unwrap().wait().unwrap_err();
    assert_eq!(error.to_string(), "output token 0: nothing may come next");
    assert_all_free(&engine);
    assert_eq!(Arc::strong_count(&lines), 2, "the guides of the others are still there");
}

#[test]
fn an_end_token_ends_a_guided_output_even_if_others_would_go_on() {
    let mock = mock();
    let engine = guided_engine(&mock, vec![vec![Line::Open, Line::Only(EOS)]], None);
    let params = SamplingParams { ignore_eos: true, ..follow(0, 20) };
    let output = engine.generate(Request::new(prompt(1, 5), params)).unwrap().wait().unwrap();
    assert_eq!((output.token_ids.len(), output.finish_reason), (2, FinishReason::Stop));
}

#[test]
fn where_nothing_allowed_may_follow_the_output_ends_if_it_may() {
    let mock = mock();
    let prompt = prompt(1, 5);
    let wanted = expected(&mock, &prompt, &SamplingParams::greedy(3));
    // All tokens are allowed but one, and the end is not among them.
    let missing = (3..).find(|token| !wanted.contains(token)).unwrap();
    let allowed = (0..mock.capacity.vocab_size).filter(|token| ![missing, EOS].contains(token));
    let lines = |last| [vec![Line::Open; 3], vec![last]].concat();
    let engine = guided_engine(&mock, vec![lines(Line::End(missing)), lines(Line::Only(missing))], None);
    let run = |script| {
        let params = follow(script, 20).allowed_token_ids(allowed.clone());
        engine.generate(Request::new(prompt.clone(), params)).unwrap().wait()
    };
    let output = run(0).unwrap();
    assert_eq!((output.token_ids, output.finish_reason), (wanted, FinishReason::Stop));
    let error = run(1).unwrap_err().to_string();
    assert_eq!(error, "output token 3: none of the allowed_token_ids is a token that may come next");
    assert_all_free(&engine);
}

#[test]
fn others_run_while_a_grammar_compiles() {
    let mock = mock();
    let (open, gate) = mpsc::channel();
    let engine = guided_engine(&mock, vec![vec![]], Some(gate));
    let led = engine.generate(Request::new(prompt(0, 5), follow(0, 4))).unwrap();
    let other = engine.generate(Request::new(prompt(1, 5), SamplingParams::greedy(30))).unwrap();
    assert_eq!(other.wait().unwrap().token_ids.len(), 30);
    open.send(()).unwrap();
    assert_eq!(led.wait().unwrap().token_ids, expected(&mock, &prompt(0, 5), &SamplingParams::greedy(4)));
    // One that is cancelled while it compiles leaves nothing behind.
    drop(engine.generate(Request::new(prompt(2, 5), follow(0, 4))).unwrap());
    open.send(()).unwrap();
    drop(open);
    let metrics = || engine.metrics();
    let deadline = Instant::now() + Duration::from_secs(20);
    while metrics().cancelled == 0 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    assert_eq!((metrics().waiting, metrics().kv_blocks_used), (0, 0));
}

#[test]
fn what_goes_wrong_ends_its_request_alone_and_says_where() {
    let mock = mock();
    let scripts = [Line::Fail, Line::Panic].map(|line| [vec![Line::Open; 3], vec![line]].concat());
    let engine = guided_engine(&mock, scripts.to_vec(), None);
    let bystander = engine.generate(Request::new(prompt(9, 20), SamplingParams::greedy(60))).unwrap();
    let refusal = |params: SamplingParams| {
        engine.generate(Request::new(prompt(1, 5), params)).unwrap().wait().unwrap_err().to_string()
    };
    assert_eq!(refusal(follow(0, 20)), "output token 3: nothing may come next");
    assert!(refusal(follow(1, 20)).contains("output token 3: the grammar engine stopped at a defect"));
    let nonsense = SamplingParams { constraint: Some(Constraint::Regex("x".into())), ..SamplingParams::greedy(5) };
    assert_eq!(refusal(nonsense), "x is no script");
    assert_eq!(bystander.wait().unwrap().token_ids, expected(&mock, &prompt(9, 20), &SamplingParams::greedy(60)));
    assert_all_free(&engine);
}

#[test]
fn an_engine_without_grammars_says_so() {
    let engine = start(&mock());
    let error = engine.generate(Request::new(prompt(0, 4), follow(0, 4))).unwrap_err();
    assert!(error.to_string().contains("feature `structured`"), "{error}");
    assert_all_free(&engine);
}

#[test]
fn a_lost_device_costs_no_token() {
    let mut mock = mock();
    let wanted = expected(&mock, &prompt(4, 12), &SamplingParams::greedy(40));
    for epoch in 1..12 {
        mock.fault = Some(Fault::LostAtPoll(Epoch(epoch)));
        let healthy = MockOptions { fault: None, ..mock.clone() };
        let rebuild: RunnerFactory = Box::new(move || Ok(boxed(&healthy)));
        let mut settings = settings(&mock);
        let scripts = vec![Arc::new(forcing(&wanted, &[2, 3, 9, 10, 11]))];
        settings.guides = Some(Arc::new(Scripts { scripts, gate: None }));
        let engine = Engine::start(boxed(&mock), Some(rebuild), None, settings).unwrap();
        let led = engine.generate(Request::new(prompt(4, 12), follow(0, 40))).unwrap();
        let free = engine.generate(Request::new(prompt(4, 12), SamplingParams::greedy(40))).unwrap();
        assert_eq!(led.wait().unwrap().token_ids, wanted, "lost at {epoch}");
        assert_eq!(free.wait().unwrap().token_ids, wanted, "lost at {epoch}");
    }
}

#[test]
fn little_memory_costs_no_token() {
    let mut mock = mock();
    mock.capacity.block_count = 12;
    let prompts: Vec<_> = (0..5).map(|index| prompt(index, 20)).collect();
    let wanted: Vec<_> = prompts.iter().map(|p| expected(&mock, p, &SamplingParams::greedy(60))).collect();
    let scripts = wanted.iter().map(|tokens| forcing(tokens, &[5, 6, 7, 8, 30, 31, 50])).collect();
    let engine = guided_engine(&mock, scripts, None);
    let streams: Vec<_> =
        (0..5).map(|index| engine.generate(Request::new(prompts[index].clone(), follow(index, 60))).unwrap()).collect();
    let outputs: Vec<_> = streams.into_iter().map(|stream| stream.wait().unwrap()).collect();
    assert!(outputs.iter().any(|output| output.usage.preemptions > 0), "memory was not short");
    for (output, wanted) in outputs.iter().zip(&wanted) {
        assert_eq!(output.token_ids, *wanted);
    }
}
