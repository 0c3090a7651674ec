//! What is refused, and how one step's budget is shared.

use super::*;

#[test]
fn contradictions_are_refused_with_the_reason() {
    let capacity = MockRunner::new(MockOptions::default()).capacity();
    let cases: [(SchedulerConfig, &str); 9] = [
        (SchedulerConfig { max_num_seqs: 0, ..config() }, "max_num_seqs is 0"),
        (SchedulerConfig { max_num_seqs: 9, ..config() }, "max_num_seqs is 9, above the 8"),
        (SchedulerConfig { max_num_batched_tokens: 3, ..config() }, "below max_num_seqs 4"),
        (SchedulerConfig { max_num_batched_tokens: 257, ..config() }, "above the 256 token rows"),
        (SchedulerConfig { max_model_len: 513, ..config() }, "above the 512"),
        (SchedulerConfig { max_model_len: 1, ..config() }, "need at least 2"),
        (SchedulerConfig { chunked_prefill: false, ..config() }, "without chunked prefill"),
        (SchedulerConfig { max_steps: 17, ..config() }, "steps_per_submit is 17"),
        (SchedulerConfig { max_in_flight: 0, ..config() }, "max_in_flight is 0"),
    ];
    for (config, expected) in cases {
        let message = Scheduler::new(config, capacity).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn what_can_never_run_is_refused_with_the_limit() {
    // Defect (h): a prompt larger than the pool was retried for ever.
    let mut rig = Rig::new(config(), 4);
    let cases: [(NewSequence, &str); 6] = [
        (request(vec![], 1), "no tokens"),
        (request(vec![5, 1000], 1), "token 1000 at position 1 is outside the vocabulary; ids go from 0 to 999"),
        (request(vec![1], 0), "max_tokens is 0"),
        (request(prompt(0, 256), 1), "shorten the prompt to 255"),
        (request(prompt(0, 65), 1), "all 4 blocks together hold 64"),
        (request(prompt(0, 10), 56), "KV memory for 65 tokens"),
    ];
    for (new, expected) in cases {
        let message = rig.scheduler.add(new, &mut Vec::new()).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    assert!(!rig.scheduler.has_work());
    // The last token needs no KV: 10 + 55 tokens fit into 64 positions exactly.
    let seq = rig.add(prompt(0, 10), 55);
    rig.drain();
    assert_eq!(rig.tokens(seq), alone(&prompt(0, 10), 55));
}

#[test]
fn a_step_takes_no_more_prompt_tokens_than_the_caller_allows() {
    let mut rig = Rig::new(config(), 8);
    rig.scheduler.set_prompt_limit(24);
    rig.add(prompt(0, 40), 3);
    assert!(rig.step().ends_with("prefill 0@0..24"));
    // Decode rows do not count, and no limit brings prompts to a halt.
    rig.add(prompt(1, 9), 3);
    let step = rig.step();
    assert!(step.ends_with("prefill 0@24..40! prefill 1@0..8"), "{step}");
    rig.scheduler.set_prompt_limit(0);
    let step = rig.step();
    assert!(step.ends_with("prefill 1@8..9! decode 0@40"), "{step}");
    // A prompt that must run whole does.
    let whole = SchedulerConfig { chunked_prefill: false, max_num_batched_tokens: 64, max_model_len: 64, ..config() };
    let mut rig = Rig::new(whole, 8);
    rig.scheduler.set_prompt_limit(8);
    rig.add(prompt(0, 40), 3);
    assert!(rig.step().ends_with("prefill 0@0..40!"));
}

#[test]
fn a_prompt_is_cut_into_chunks_and_asks_for_a_token_at_its_end_alone() {
    // Defect (j): the runner was asked for a token after every chunk.
    let mut rig = Rig::new(SchedulerConfig { max_num_batched_tokens: 16, ..config() }, 8);
    rig.add(prompt(0, 40), 3);
    assert_eq!(rig.step(), "#1 x1 open 0=0 table 0[0]=0 table 0[1]=1 table 0[2]=2 prefill 0@0..16");
    assert!(rig.tokens(SeqId(0)).is_empty());
    assert_eq!(rig.step(), "#2 x1 prefill 0@16..32");
    assert_eq!(rig.step(), "#3 x1 prefill 0@32..40!");
    assert_eq!(rig.tokens(SeqId(0)).len(), 1);
    assert_eq!(rig.step(), "#4 x1 decode 0@40");
    assert_eq!(rig.step(), "#5 x1 decode 0@41");
    assert_eq!(rig.schedule(), "-");
    assert_eq!(rig.tokens(SeqId(0)), alone(&prompt(0, 40), 3));
    assert_eq!(rig.reason(SeqId(0)), Some(FinishReason::Length));
}

#[test]
fn chunks_share_a_step_with_decode_rows_which_come_first() {
    let mut rig = Rig::new(SchedulerConfig { max_num_batched_tokens: 20, ..config() }, 8);
    rig.add(prompt(0, 4), 9);
    rig.step();
    rig.add(prompt(100, 30), 9);
    assert_eq!(rig.step(), "#2 x1 open 1=1 table 1[0]=1 table 1[1]=2 prefill 1@0..19 decode 0@4");
    assert_eq!(rig.step(), "#3 x1 prefill 1@19..30! decode 0@5");
    assert_eq!(rig.step(), "#4 x1 decode 0@6 decode 1@30");
}

#[test]
fn the_threshold_leaves_budget_to_later_prompts() {
    let mut rig = Rig::new(SchedulerConfig { long_prefill_token_threshold: 8, ..config() }, 8);
    rig.add(prompt(0, 20), 1);
    rig.add(prompt(100, 5), 1);
    assert!(rig.step().ends_with("prefill 0@0..8 prefill 1@0..5!"));
    assert_eq!(rig.step(), "#2 x1 prefill 0@8..16 close 1");
    assert_eq!(rig.step(), "#3 x1 prefill 0@16..20!");
}

#[test]
fn without_chunking_a_prompt_runs_whole_or_waits() {
    let mut rig = Rig::new(
        SchedulerConfig { chunked_prefill: false, max_model_len: 64, max_num_batched_tokens: 64, ..config() },
        16,
    );
    rig.add(prompt(0, 40), 2);
    rig.add(prompt(100, 40), 2);
    rig.add(prompt(200, 4), 2);
    assert!(rig.step().ends_with("prefill 0@0..40!"), "the third may not overtake the second");
    assert!(rig.step().ends_with("prefill 1@0..40! prefill 2@0..4! decode 0@40"));
}

#[test]
fn slots_limit_the_batch() {
    let mut rig = Rig::new(SchedulerConfig { max_num_seqs: 2, ..config() }, 16);
    for index in 0..3 {
        rig.add(prompt(index * 50, 4), 2);
    }
    rig.step();
    assert_eq!((rig.scheduler.stats().running, rig.scheduler.stats().waiting), (2, 1));
    rig.step();
    // A slot that finds a new owner at once is not reported closed.
    assert_eq!(rig.step(), "#3 x1 open 1=2 table 1[0]=2 prefill 2@0..4! close 0");
}
