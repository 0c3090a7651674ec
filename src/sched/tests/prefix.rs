//! The prefix cache and scored prompts.

use super::*;

#[test]
fn a_hit_skips_prefill_but_never_the_last_token() {
    // Defect (i): hits did not advance the prefill.
    let mut rig = Rig::new(config(), 16);
    let first = rig.add(prompt(0, 48), 1);
    rig.drain();
    let second = rig.add(prompt(0, 48), 1);
    let text = rig.step();
    assert!(text.contains("prefill 1@32..48!"), "an all-cached prompt computes its last block: {text}");
    let longer = rig.add(prompt(0, 49), 1);
    assert!(rig.step().contains("prefill 2@48..49!"));
    assert_eq!(rig.cached(second), [32]);
    assert_eq!(rig.cached(longer), [48]);
    assert_eq!(rig.tokens(first), rig.tokens(second));
    assert_eq!((rig.scheduler.stats().prefix_queries, rig.scheduler.stats().prefix_hits), (48 + 48 + 49, 80));
}

#[test]
fn equal_tokens_elsewhere_or_under_another_salt_do_not_hit() {
    // Defect (a): the hash covered a block's own tokens alone.
    let mut rig = Rig::new(config(), 32);
    let block = prompt(0, 16);
    let other = prompt(300, 16);
    rig.add([block.clone(), other.clone(), vec![1]].concat(), 1);
    rig.drain();
    let swapped = rig.add([other, block.clone(), vec![1]].concat(), 1);
    let salted = NewSequence { cache_salt: Some("team".into()), ..request([block.clone(), vec![1]].concat(), 1) };
    let salted = rig.accept(salted);
    let plain = rig.add([block, vec![1]].concat(), 1);
    rig.drain();
    assert_eq!((rig.cached(swapped), rig.cached(salted), rig.cached(plain)), (vec![0], vec![0], vec![16]));
}

#[test]
fn blocks_are_found_once_their_submission_retired_and_not_before() {
    let mut rig = Rig::new(SchedulerConfig { max_in_flight: 2, ..config() }, 16);
    rig.add(prompt(0, 20), 5);
    rig.schedule();
    let early = rig.add(prompt(0, 20), 1);
    rig.schedule();
    assert_eq!(rig.cached(early), [0]);
    rig.commit();
    let late = rig.add(prompt(0, 20), 1);
    rig.schedule();
    assert_eq!(rig.cached(late), [16]);
    rig.drain();
}

#[test]
fn generated_blocks_are_cached_too_and_speed_up_a_return() {
    let mut rig = Rig::new(config(), 16);
    let first = rig.add(prompt(0, 20), 30);
    rig.drain();
    let history = [prompt(0, 20), rig.tokens(first), vec![7; 4]].concat();
    let second = rig.add(history, 1);
    rig.drain();
    // 49 of the 50 tokens have KV.
    assert_eq!(rig.cached(second), [48]);
}

#[test]
fn scored_prompts_compute_every_row_and_report_each_position_once() {
    let mut rig = Rig::new(SchedulerConfig { max_num_batched_tokens: 16, ..config() }, 16);
    rig.add(prompt(0, 40), 1);
    rig.drain();
    let seq = rig.accept(NewSequence { score: true, ..request(prompt(0, 40), 1) });
    rig.drain();
    assert_eq!(rig.cached(seq), [0]);
    let scores = rig.events.iter().filter_map(|event| match event {
        SchedEvent::Score { position, logprob, .. } => Some((*position, *logprob)),
        _ => None,
    });
    let scores: Vec<_> = scores.collect();
    let expected: Vec<_> = (1..40).map(|position| (position, MockOptions::logprob(position))).collect();
    assert_eq!(scores, expected);
}

#[test]
fn a_prompt_that_fills_the_context_can_be_scored_without_sampling() {
    let mut rig = Rig::new(SchedulerConfig { max_model_len: 48, ..config() }, 3);
    let seq = rig.accept(NewSequence { score: true, ..request(prompt(0, 48), 1) });
    rig.drain();
    assert!(rig.tokens(seq).is_empty());
    assert_eq!(rig.reason(seq), Some(FinishReason::Length));
    assert_eq!(rig.events.iter().filter(|event| matches!(event, SchedEvent::Score { .. })).count(), 47);
}
