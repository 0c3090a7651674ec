//! Sequences that the caller guides, and the room for log-probabilities.

use super::*;
use crate::sampling::lists::mask_words;
use crate::sampling::row::{ALL_LOGPROBS, HAS_MASK, IS_GUIDED};

fn guided(prompt: Vec<TokenId>, max_tokens: u32) -> NewSequence {
    let mut new = request(prompt, max_tokens);
    new.sampling.flags |= HAS_MASK | IS_GUIDED;
    new
}

impl Rig {
    /// As `schedule`, with masks that allow everything.
    fn schedule_guided(&mut self) -> String {
        if !self.scheduler.schedule(&mut self.plan, &mut self.events) {
            return "-".into();
        }
        self.scheduler.check_plan(&self.plan);
        let words = mask_words(self.runner.capacity().vocab_size as usize);
        self.plan.mask_words.resize(self.plan.masks.len() * words, u32::MAX);
        self.runner.submit(&self.plan).unwrap();
        self.plan.to_string()
    }
}

#[test]
fn each_token_waits_for_its_mask_and_others_run_ahead() {
    let mut rig = Rig::new(SchedulerConfig { max_in_flight: 2, max_steps: 8, ..config() }, 16);
    let free = rig.add(prompt(0, 4), 6);
    let led = rig.accept(guided(prompt(100, 4), 3));
    assert!(rig.schedule_guided().contains("prefill 1@0..4! mask 1"));
    // Nothing is known of the first guided token; the other goes on, one step at a time or more.
    let ahead = rig.schedule_guided();
    assert!(ahead.contains("decode 0@4") && !ahead.contains("decode 1"), "{ahead}");
    rig.commit();
    assert_eq!(rig.tokens(led).len(), 1);
    assert!(!rig.schedule_guided().contains("decode 1"));
    rig.scheduler.set_ready(led);
    rig.commit();
    let both = rig.schedule_guided();
    assert!(both.contains("decode 1@4") && both.contains("mask 1") && both.contains(" x1"), "{both}");
    for _ in 0..20 {
        rig.scheduler.set_ready(led);
        while rig.schedule_guided() != "-" {}
        if !rig.scheduler.has_work() {
            break;
        }
        if rig.scheduler.in_flight() > 0 {
            rig.commit();
        }
    }
    assert_eq!(rig.tokens(free), alone(&prompt(0, 4), 6));
    assert_eq!(rig.tokens(led), alone(&prompt(100, 4), 3));
}

#[test]
fn alone_it_waits_for_the_caller_and_not_for_the_device() {
    let mut rig = Rig::new(config(), 16);
    let seq = rig.accept(guided(prompt(0, 4), 3));
    rig.schedule_guided();
    rig.commit();
    assert_eq!(rig.schedule_guided(), "-");
    assert!(rig.scheduler.awaits_caller());
    rig.scheduler.set_ready(seq);
    assert!(!rig.scheduler.awaits_caller());
    assert!(rig.schedule_guided().contains("decode 0@4"));
}

#[test]
fn appended_tokens_are_computed_with_the_next_one() {
    let mut rig = Rig::new(config(), 16);
    let expected = alone(&prompt(0, 30), 9);
    let seq = rig.accept(guided(prompt(0, 30), 9));
    rig.schedule_guided();
    rig.commit();
    rig.scheduler.append(seq, &expected[1..4], &mut rig.events);
    rig.scheduler.set_ready(seq);
    // Across the border of a block that nobody counted on.
    assert!(rig.schedule_guided().contains("prefill 0@30..34! mask 0"));
    rig.commit();
    assert_eq!(rig.tokens(seq), expected[..5]);
    // Beyond its end nothing is taken.
    rig.scheduler.append(seq, &[expected[5..].to_vec(), vec![1, 2, 3]].concat(), &mut rig.events);
    assert_eq!(rig.tokens(seq), expected);
    assert_eq!(rig.reason(seq), Some(FinishReason::Length));
    assert!(!rig.scheduler.has_work());
    let unused = rig.scheduler.stats().blocks_free;
    assert_eq!(unused, 16);
}

#[test]
fn an_appended_stop_token_ends_it() {
    let mut rig = Rig::new(config(), 16);
    let seq = rig.accept(NewSequence { stop_tokens: vec![7], ..guided(prompt(0, 4), 9) });
    rig.schedule_guided();
    rig.commit();
    rig.scheduler.append(seq, &[6, 7, 8], &mut rig.events);
    assert_eq!(rig.tokens(seq)[1..], [6, 7]);
    assert_eq!(rig.reason(seq), Some(FinishReason::Stop));
}

#[test]
fn nothing_is_appended_while_a_token_is_under_way() {
    let mut rig = Rig::new(config(), 16);
    let seq = rig.accept(guided(prompt(0, 4), 3));
    rig.schedule_guided();
    rig.scheduler.append(seq, &[5], &mut rig.events);
    rig.commit();
    assert_eq!(rig.tokens(seq), alone(&prompt(0, 4), 1));
}

#[test]
fn a_mask_survives_preemption_and_a_lost_device() {
    let mut rig = Rig::new(config(), 16);
    let seq = rig.accept(guided(prompt(0, 4), 3));
    rig.schedule_guided();
    // Its token is lost with the device, so its mask is good for another try.
    rig.scheduler.requeue_all(&mut rig.events);
    rig.runner = MockRunner::new(MockOptions { ..MockOptions::default() });
    assert!(rig.schedule_guided().contains("prefill 0@0..4! mask 0"));
    rig.commit();
    // This one came, and its successor has no mask yet.
    rig.scheduler.requeue_all(&mut rig.events);
    rig.runner = MockRunner::new(MockOptions::default());
    assert_eq!(rig.schedule_guided(), "-");
    assert!(rig.scheduler.awaits_caller());
    rig.scheduler.set_ready(seq);
    assert!(rig.schedule_guided().contains("prefill 0@0..5! mask 0"));
}

#[test]
fn appended_tokens_find_blocks_even_if_all_are_short() {
    // Three sequences of one block each fill the pool; each then wants a second one.
    let mut rig = Rig::new(SchedulerConfig { prefix_cache: false, ..config() }, 3);
    let prompts: Vec<_> = (0..3).map(|index| prompt(index * 100, 14)).collect();
    let seqs: Vec<SeqId> = prompts.iter().map(|prompt| rig.accept(guided(prompt.clone(), 20))).collect();
    for _ in 0..200 {
        if !rig.scheduler.has_work() {
            break;
        }
        while rig.schedule_guided() != "-" {}
        if rig.scheduler.in_flight() > 0 {
            rig.commit();
        }
        for (seq, prompt) in seqs.iter().zip(&prompts) {
            let done = rig.tokens(*seq).len();
            let expected = alone(prompt, 20);
            if done > 0 && done + 3 < 20 {
                rig.scheduler.append(*seq, &expected[done..done + 3], &mut rig.events);
            }
            if done > 0 {
                rig.scheduler.set_ready(*seq);
            }
        }
    }
    for (seq, prompt) in seqs.iter().zip(&prompts) {
        assert_eq!(rig.tokens(*seq), alone(prompt, 20));
    }
}

#[test]
fn released_siblings_wait_for_the_prompt_that_they_share() {
    let mut rig = Rig::new(config(), 16);
    let leader = rig.accept(NewSequence { held: true, ..guided(prompt(0, 40), 2) });
    let follower = rig.accept(NewSequence { held: true, fork_of: Some(leader), ..guided(prompt(0, 40), 2) });
    assert_eq!(rig.schedule_guided(), "-");
    assert!(rig.scheduler.awaits_caller());
    rig.scheduler.release(leader);
    rig.scheduler.release(follower);
    let text = rig.schedule_guided();
    assert!(text.contains("prefill 0@0..40!") && !text.contains("prefill 1"), "{text}");
    rig.commit();
    assert!(rig.schedule_guided().contains("prefill 1@39..40!"));
}

#[test]
fn rows_with_logprobs_share_the_room_that_there_is() {
    let mut options = MockOptions::default();
    options.capacity.logprob_entries = 1000;
    let mut rig = Rig::with(SchedulerConfig { max_steps: 8, ..config() }, 32, options);
    let wanting = |index: u32, logprobs| {
        let mut new = request(prompt(index * 100, 4), 3);
        new.sampling.logprobs = logprobs;
        new
    };
    // The whole vocabulary for each of two: one at a time. A third wants none and runs with either.
    let seqs = [wanting(0, ALL_LOGPROBS), wanting(1, ALL_LOGPROBS), wanting(2, 0)].map(|new| rig.accept(new));
    let first = rig.step();
    assert!(first.contains("prefill 0") && !first.contains("prefill 1"), "{first}");
    rig.drain();
    for (index, seq) in seqs.into_iter().enumerate() {
        assert_eq!(rig.tokens(seq), alone(&prompt(index as u32 * 100, 4), 3));
    }
}

#[test]
fn a_scored_prompt_is_cut_where_its_logprobs_have_no_room() {
    let mut options = MockOptions::default();
    options.capacity.logprob_entries = 1000;
    let mut rig = Rig::with(config(), 32, options);
    let mut new = NewSequence { score: true, ..request(prompt(0, 50), 2) };
    new.sampling.prompt_logprobs = 51;
    let seq = rig.accept(new);
    assert!(rig.step().ends_with("prefill 0@0..20"), "50 entries for each of 20 tokens fill the room");
    rig.drain();
    assert_eq!(rig.tokens(seq), alone(&prompt(0, 50), 2));
}

#[test]
fn a_prompt_with_many_logprobs_is_not_passed_over_for_ever() {
    let mut options = MockOptions::default();
    let vocab_size = options.capacity.vocab_size;
    options.capacity.logprob_entries = 2 * vocab_size;
    let mut rig = Rig::with(config(), 64, options);
    // Its last prompt token takes all the room: one vocabulary for the score, one for what is sampled.
    let mut new = NewSequence { score: true, ..request(prompt(0, 4), 3) };
    (new.sampling.prompt_logprobs, new.sampling.logprobs) = (ALL_LOGPROBS, ALL_LOGPROBS);
    let greedy = rig.accept(new);
    // Others that want one vocabulary a token come all the time, and each overlaps the next.
    let mut others = Vec::new();
    let mut steps = 0;
    while rig.reason(greedy).is_none() {
        let mut new = request(prompt(100 + steps, 2), 6);
        new.sampling.logprobs = ALL_LOGPROBS;
        others.push(rig.accept(new));
        rig.step();
        steps += 1;
        assert!(steps < 40, "{:?} of {} others went before", rig.tokens(greedy), others.len());
    }
    assert_eq!(rig.tokens(greedy), alone(&prompt(0, 4), 3));
    rig.drain();
    for (index, seq) in others.into_iter().enumerate() {
        assert_eq!(rig.tokens(seq), alone(&prompt(100 + index as u32, 2), 6));
    }
}
