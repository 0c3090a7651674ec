//! Who runs first, who gives way, and how prompts share a step.

use super::*;
use crate::sched::{Policy, Preemption};

fn with(policy: Policy) -> SchedulerConfig {
    SchedulerConfig { policy, prefix_cache: false, max_num_seqs: 1, ..config() }
}

/// The order in which they get their slots.
fn admitted(rig: &Rig) -> Vec<u64> {
    let seq = |event: &SchedEvent| match event {
        SchedEvent::Admitted { seq, .. } => Some(seq.0),
        _ => None,
    };
    rig.events.iter().filter_map(seq).collect()
}

#[test]
fn smaller_priorities_come_first_and_ties_by_arrival() {
    let mut rig = Rig::new(with(Policy::Priority), 16);
    for priority in [0, 5, -1, 0, -1] {
        rig.accept(NewSequence { priority, deadline_micros: Some(7), ..request(prompt(0, 4), 2) });
    }
    rig.drain();
    assert_eq!(admitted(&rig), [2, 4, 0, 3, 1], "deadlines are another scale");
}

#[test]
fn waiting_outweighs_priority_in_time() {
    let mut rig = Rig::new(SchedulerConfig { aging_micros: 1000, ..with(Policy::Priority) }, 16);
    // One level of priority is worth a millisecond: the third came too late to pass the second.
    for (priority, arrival_micros) in [(0, 0), (1, 100), (0, 1200), (0, 900)] {
        rig.accept(NewSequence { priority, arrival_micros, ..request(prompt(0, 4), 2) });
    }
    rig.drain();
    assert_eq!(admitted(&rig), [0, 3, 1, 2]);
}

#[test]
fn the_earliest_deadline_comes_first_and_priorities_do_not_count() {
    let mut rig = Rig::new(SchedulerConfig { deadline_micros: 5000, ..with(Policy::Edf) }, 16);
    for (deadline_micros, priority) in [(Some(9000), -9), (Some(3000), 0), (None, 0), (Some(4000), 9)] {
        rig.accept(NewSequence { deadline_micros, priority, arrival_micros: 10, ..request(prompt(0, 4), 2) });
    }
    rig.drain();
    assert_eq!(admitted(&rig), [1, 3, 2, 0]);
}

#[test]
fn the_least_urgent_gives_way_whoever_came_last() {
    for (policy, victim) in [(Policy::Fcfs, 1), (Policy::Priority, 0), (Policy::Edf, 0)] {
        let mut rig = Rig::new(SchedulerConfig { max_num_seqs: 4, ..with(policy) }, 4);
        let urgent = |priority, deadline| NewSequence {
            priority,
            deadline_micros: Some(deadline),
            ..request(prompt(priority as u32 * 100, 31), 20)
        };
        rig.accept(urgent(2, 9000));
        rig.accept(urgent(1, 1000));
        rig.drain();
        let victims: Vec<u64> = (rig.events.iter())
            .filter_map(|event| match event {
                SchedEvent::Preempted { seq, .. } => Some(seq.0),
                _ => None,
            })
            .collect();
        assert!(!victims.is_empty() && victims.iter().all(|seq| *seq == victim), "{policy:?}: {victims:?}");
    }
}

#[test]
fn prompts_and_decoding_never_share_a_step_when_split() {
    let mut rig = Rig::new(SchedulerConfig { max_num_seqs: 4, ..with(Policy::PhaseSplit) }, 16);
    rig.add(prompt(0, 20), 5);
    assert!(rig.step().ends_with("prefill 0@0..20!"));
    rig.add(prompt(100, 70), 5);
    assert!(rig.step().ends_with("prefill 1@0..64"), "the new prompt before the decoding");
    assert!(rig.step().ends_with("prefill 1@64..70!"));
    assert_eq!(rig.step(), "#4 x1 decode 0@20 decode 1@70");
    rig.drain();
}

#[test]
fn decoding_is_never_held_up_by_a_prompt() {
    let mut rig = Rig::new(SchedulerConfig { max_num_batched_tokens: 16, prefix_cache: false, ..config() }, 16);
    // More urgent, but with a prompt that would fill every step.
    rig.add(prompt(0, 100), 2);
    rig.step();
    for start in [200, 300] {
        rig.add(prompt(start, 4), 9);
    }
    for _ in 0..7 {
        rig.step();
    }
    let text = rig.step();
    assert!(text.contains("decode 1@") && text.contains("decode 2@"), "{text}");
}

#[test]
fn as_many_prompts_as_allowed_are_partly_computed_and_share_the_budget() {
    let capped = SchedulerConfig { long_prefill_token_threshold: 20, prefix_cache: false, ..config() };
    let mut rig = Rig::new(capped.clone(), 32);
    for start in [0, 100, 200] {
        rig.add(prompt(start, 50), 2);
    }
    assert!(rig.step().ends_with("prefill 0@0..20"), "one at a time");
    let two = SchedulerConfig { max_num_partial_prefills: 2, max_long_partial_prefills: 2, ..capped };
    let mut rig = Rig::new(SchedulerConfig { max_num_batched_tokens: 30, ..two }, 32);
    for start in [0, 100, 200] {
        rig.add(prompt(start, 50), 2);
    }
    assert!(rig.step().ends_with("prefill 0@0..20 prefill 1@0..10"));
    assert!(rig.step().ends_with("prefill 0@20..35 prefill 1@10..25"), "evenly from then on");
    rig.drain();
}

#[test]
fn prompts_share_the_budget_without_a_threshold_too() {
    let two = SchedulerConfig { max_num_partial_prefills: 2, max_num_batched_tokens: 30, ..config() };
    let mut rig = Rig::new(SchedulerConfig { prefix_cache: false, ..two }, 32);
    for start in [0, 100, 200] {
        rig.add(prompt(start, 50), 2);
    }
    assert!(rig.step().ends_with("prefill 0@0..30"), "nobody was there to share with");
    assert!(rig.step().ends_with("prefill 0@30..45 prefill 1@0..15"));
    rig.drain();
}

#[test]
fn short_prompts_pass_a_long_one_that_waits_for_its_kind() {
    let capped = SchedulerConfig {
        long_prefill_token_threshold: 16,
        max_num_partial_prefills: 2,
        prefix_cache: false,
        ..config()
    };
    let mut rig = Rig::new(capped, 32);
    rig.add(prompt(0, 60), 2);
    rig.add(prompt(100, 60), 2);
    rig.add(prompt(200, 10), 2);
    assert!(rig.step().ends_with("prefill 0@0..16 prefill 2@0..10!"));
    rig.drain();
    assert_eq!(admitted(&rig), [0, 2, 1]);
}

#[test]
fn the_watermark_keeps_blocks_for_those_who_run() {
    let mut rig = Rig::new(SchedulerConfig { watermark: 0.25, prefix_cache: false, ..config() }, 8);
    rig.add(prompt(0, 60), 9);
    rig.step();
    rig.add(prompt(100, 40), 2);
    assert!(
        !rig.step().contains("prefill"),
        "three blocks are free besides the two that stay so, but it needs three of them"
    );
    rig.drain();
    // Alone, it may take them.
    rig.add(prompt(100, 120), 2);
    assert!(rig.step().contains("prefill"));
}

#[test]
fn contradictions_are_refused_with_the_reason() {
    let cases = [
        (SchedulerConfig { max_long_partial_prefills: 2, ..config() }, "max_long_partial_prefills is 2"),
        (SchedulerConfig { max_num_partial_prefills: 0, ..config() }, "max_num_partial_prefills 0"),
        (SchedulerConfig { watermark: 1.0, ..config() }, "watermark is 1"),
        (SchedulerConfig { watermark: f32::NAN, ..config() }, "watermark is NaN"),
        (SchedulerConfig { aging_micros: 0, ..config() }, "aging is 0"),
        (SchedulerConfig { preemption: Preemption::Swap, ..config() }, "--swap-space"),
        (SchedulerConfig { host_cache: true, ..config() }, "--swap-space"),
        (SchedulerConfig { watchdog_steps: 0, ..config() }, "watchdog_steps is 0"),
    ];
    for (config, part) in cases {
        let message = Scheduler::new(config, MockOptions::default().capacity).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    let mut rig = Rig::new(config(), 8);
    let late = NewSequence { arrival_micros: 9_000, deadline_micros: Some(2_000), ..request(prompt(0, 4), 2) };
    let salt = NewSequence { cache_salt: Some(String::new()), ..request(prompt(0, 4), 2) };
    for (new, part) in [(late, "7 ms before"), (salt, "cache_salt is empty")] {
        let message = rig.scheduler.add(new, &mut rig.events).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}
