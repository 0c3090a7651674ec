//! How outputs end, and what of their ends is shown: stops that are kept or too early, repetitions, rules that leave no token;
//! and what is refused at the door.

use super::*;
use octavo::config::EngineConfig;
use octavo::runner::SampleFault;
use octavo::sampling::{RepetitionDetection, TopLogprobs};

/// An engine whose text is that of a tiny model.
fn engine(mock: &MockOptions) -> Engine {
    Engine::start(boxed(mock), None, Some(tokenizer()), settings(mock)).unwrap()
}

fn run(engine: &Engine, prompt: &[TokenId], params: &SamplingParams) -> octavo::RequestOutput {
    engine.generate(Request::new(prompt, params.clone())).unwrap().wait().unwrap()
}

/// Without end tokens.
fn whole(max_tokens: u32) -> SamplingParams {
    SamplingParams::greedy(max_tokens).ignore_eos()
}

#[test]
fn a_stop_is_kept_where_asked() {
    let mock = mock();
    let (engine, tokenizer) = (engine(&mock), tokenizer());
    for seed in 0..20 {
        let prompt = prompt(seed, 5);
        let tokens = expected(&mock, &prompt, &whole(60));
        let text = tokenizer.decode(&tokens, true);
        let chars: Vec<char> = text.chars().collect();
        let stop: String = chars[chars.len() / 2..].iter().take(4).collect();
        let output = run(&engine, &prompt, &whole(60).stop(stop.clone()).include_stop_str_in_output());
        let (before, _) = text.split_once(&stop).unwrap();
        assert_eq!((output.text, output.finish_reason), (format!("{before}{stop}"), FinishReason::Stop));
        // The same of a token. The first one may be a special one, without text.
        let stop = whole(60).stop_token_id(tokens[20]).include_stop_str_in_output().keep_special_tokens();
        let output = run(&engine, &prompt, &stop);
        assert_eq!(
            (output.text, output.finish_reason),
            (tokenizer.decode(&output.token_ids, false), FinishReason::Stop)
        );
        assert_eq!(output.token_ids.last(), Some(&tokens[20]));
    }
}

#[test]
fn a_stop_text_counts_only_after_the_least_number_of_tokens() {
    let mock = mock();
    let (engine, tokenizer) = (engine(&mock), tokenizer());
    let mut later = 0;
    for seed in 0..20 {
        let prompt = prompt(seed, 5);
        let tokens = expected(&mock, &prompt, &whole(60));
        let text = tokenizer.decode(&tokens, true);
        // A letter of which there are several.
        let letters = text.chars().filter(char::is_ascii_alphabetic);
        let stop = letters.max_by_key(|c| text.matches(*c).count()).unwrap().to_string();
        for min_tokens in [1, 7, 20, 60] {
            let output = run(&engine, &prompt, &whole(60).stop(stop.clone()).min_tokens(min_tokens));
            // Found by trying: the first token after them that brings the stop.
            let shown = |count: usize| tokenizer.decode(&tokens[..count], true);
            let ends = (min_tokens as usize + 1..=60).find(|count| {
                let (before, after) = (shown(count - 1), shown(*count));
                // Half characters are shown as U+FFFD here, and not at all in a stream.
                after.trim_end_matches('\u{fffd}').matches(&stop).count() > before.matches(&stop).count()
            });
            match ends {
                Some(count) => {
                    assert_eq!((output.token_ids.len(), output.finish_reason), (count, FinishReason::Stop));
                    assert!(shown(count).starts_with(&output.text) && !output.text.ends_with(&stop));
                    later += usize::from(output.text.contains(&stop));
                }
                None => assert_eq!((output.text, output.finish_reason), (text.clone(), FinishReason::Length)),
            }
        }
    }
    assert!(later > 5, "stops that came too early stay in the text, which happened {later} times");
}

#[test]
fn special_tokens_and_text_itself_can_be_chosen() {
    let mock = mock();
    let (engine, tokenizer) = (engine(&mock), tokenizer());
    // The mock draws from 0 to 511, of which none is special here, so one is put in as a prompt's last token would be.
    let prompt = prompt(2, 9);
    let tokens = expected(&mock, &prompt, &whole(30));
    let output = run(&engine, &prompt, &whole(30).without_text());
    assert_eq!((output.token_ids, output.text.as_str()), (tokens.clone(), ""));
    let special =
        MockOptions { eos: 512, eos_per_mille: 300, capacity: Capacity { vocab_size: 515, ..mock.capacity }, ..mock };
    let engine = Engine::start(boxed(&special), None, Some(tokenizer.clone()), settings(&special)).unwrap();
    let tokens = special.continuation(&prompt, &SamplingRow::new(&whole(40), 0, &[]), &[], prompt.len() + 40);
    assert!(tokens.contains(&512) && tokenizer.is_special(512));
    assert_eq!(run(&engine, &prompt, &whole(40)).text, tokenizer.decode(&tokens, true));
    assert_eq!(run(&engine, &prompt, &whole(40).keep_special_tokens()).text, tokenizer.decode(&tokens, false));
}

#[test]
fn an_output_that_repeats_itself_ends() {
    let mock = mock();
    // From its tenth token on, each output says the same three tokens again and again.
    let mut counts = std::collections::HashMap::new();
    let edit = move |_: &Rows, result: &mut StepResult| {
        for sampled in &mut result.tokens {
            let count = counts.entry(sampled.seq).or_insert(0);
            if *count >= 10 {
                sampled.token = Ok(100 + *count % 3);
            }
            *count += 1;
        }
    };
    let engine = Engine::start(Box::new(EditedRunner::new(&mock, edit)), None, None, settings(&mock)).unwrap();
    let detection = RepetitionDetection { max_pattern_size: 8, min_pattern_size: 2, min_count: 4 };
    let output = run(&engine, &prompt(1, 9), &whole(100).repetition_detection(detection));
    assert_eq!((output.token_ids.len(), output.finish_reason), (22, FinishReason::Repetition));
    let late = run(&engine, &prompt(1, 9), &whole(100).repetition_detection(detection).min_tokens(30));
    assert_eq!((late.token_ids.len(), late.finish_reason), (30, FinishReason::Repetition));
    let blind = run(&engine, &prompt(1, 9), &whole(100));
    assert_eq!((blind.token_ids.len(), blind.finish_reason), (100, FinishReason::Length));
    assert_all_free(&engine);
}

#[test]
fn rules_that_leave_no_token_end_their_request_alone() {
    let mock = mock();
    let mut counts = std::collections::HashMap::new();
    let edit = move |rows: &Rows, result: &mut StepResult| {
        for sampled in &mut result.tokens {
            let count = counts.entry(sampled.seq).or_insert(0);
            *count += 1;
            // The third output, by its seed, has nothing left at its sixth token.
            if rows[&sampled.seq].seed() == 12 && *count == 6 {
                sampled.token = Err(SampleFault::NothingAllowed);
            }
        }
    };
    let engine =
        Engine::start(Box::new(EditedRunner::new(&mock, edit)), None, Some(tokenizer()), settings(&mock)).unwrap();
    let others: Vec<_> = (0..5).map(|i| (prompt(i, 9), whole(40))).collect();
    let streams: Vec<_> =
        others.iter().map(|(p, s)| engine.generate(Request::new(&p[..], s.clone())).unwrap()).collect();
    let strict = SamplingParams::sampled(1.0).max_tokens(40).allowed_token_ids(0..512).bad_word("a");
    for (params, part) in [
        (
            strict.clone().seed(12),
            "there is no token that may come as its token number 6: allowed_token_ids, bad_words forbid",
        ),
        (strict.seed(10).n(3), "output 3 has no token that may come as its token number 6"),
    ] {
        let error = engine.generate(Request::new(prompt(7, 20), params)).unwrap().wait().unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(error.kind(), ErrorKind::Config);
    }
    for (stream, (prompt, params)) in streams.into_iter().zip(&others) {
        assert_eq!(stream.wait().unwrap().token_ids, expected(&mock, prompt, params));
    }
    assert_eq!(engine.metrics().failed, 2);
    assert_all_free(&engine);
}

#[test]
fn a_prompt_is_truncated_at_its_beginning() {
    let mock = mock();
    let engine = engine(&mock);
    // Longer than the context; what is kept is not.
    let long = prompt(3, 400);
    let output = run(&engine, &long, &whole(10).truncate_prompt_tokens(50));
    assert_eq!(output.prompt_token_ids, long[350..]);
    assert_eq!(output.token_ids, expected(&mock, &long[350..], &whole(10)));
    let short = run(&engine, &long[..20], &whole(10).truncate_prompt_tokens(50));
    assert_eq!(short.prompt_token_ids, long[..20]);
}

#[test]
fn impossible_parameters_are_refused_at_the_door() {
    let engine = engine(&mock());
    let base = || SamplingParams::greedy(4);
    let cases = [
        (base().presence_penalty(3.0), "presence_penalty is 3, but must be between -2 and 2"),
        (
            base().logit_bias(512, 1.0).logit_bias(700, 1.0),
            "logit_bias names 512, 700, but the vocabulary's ids go from 0 to 511",
        ),
        (base().allowed_token_ids([3, 600]), "allowed_token_ids names 600"),
        (base().stop_token_id(1000), "stop_token_ids names 1000"),
        (base().logprobs(21), "logprobs is 21, but max_logprobs allows 20"),
        (base().logprobs(TopLogprobs::All), "logprobs is all, which is 512"),
        (base().json_object(), "json_object constrains the output"),
        (base().choice(["a", "b"]), "feature `structured`"),
        (base().stop("x").without_text(), "detokenize is false"),
    ];
    for (params, part) in cases {
        let refused = engine.generate(Request::new(prompt(1, 4), params)).and_then(|stream| stream.wait());
        let error = refused.unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(error.kind(), ErrorKind::Config);
    }
    let bare = start(&mock());
    let error = bare.generate(Request::new(prompt(1, 4), base().bad_word("x"))).unwrap_err();
    assert!(error.to_string().contains("bad_words need a tokenizer"), "{error}");
}

#[test]
fn the_limit_of_log_probabilities_is_an_option() {
    let options = EngineOptions { max_logprobs: Some(3), ..EngineOptions::default() };
    let spec = ModelFiles::open(&model_folder()).unwrap().spec;
    assert_eq!(EngineConfig::new(options.clone(), &spec).unwrap().max_logprobs, Some(3));
    let llm = llm(&mock(), EngineOptions { max_num_batched_tokens: 64, ..options });
    let message = llm.generate([prompt(1, 3)], SamplingParams::greedy(1).logprobs(4)).unwrap_err().to_string();
    assert!(message.contains("logprobs is 4, but max_logprobs allows 3"), "{message}");
}
