//! The text of outputs: streamed pieces, stop texts, end tokens.

use super::*;

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
                TokenEvent::Delta { token_ids, text: new, .. } => {
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
fn text_held_back_for_a_stop_that_never_comes_is_given_out_at_the_end() {
    let mock = mock();
    let tokenizer = tokenizer();
    let engine = Engine::start(boxed(&mock), None, Some(tokenizer.clone()), settings(&mock)).unwrap();
    for seed in 0..20 {
        let whole = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(25) };
        let text = tokenizer.decode(&expected(&mock, &prompt(seed, 5), &whole), true);
        // The text ends with the beginning of this stop.
        let start = text.char_indices().rev().nth(2).unwrap().0;
        let params = SamplingParams { stop: vec![format!("{} and on", &text[start..])], ..whole };
        let output = engine.generate(Request::new(prompt(seed, 5), params)).unwrap().wait().unwrap();
        assert_eq!((output.text, output.finish_reason), (text, FinishReason::Length), "seed {seed}");
    }
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
