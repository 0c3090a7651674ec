//! Shortage of blocks: waiting, preemption, and coming back.

use super::*;

#[test]
fn a_head_without_blocks_holds_up_the_queue() {
    let mut rig = Rig::new(config(), 4);
    rig.add(prompt(0, 40), 8);
    rig.step();
    rig.add(prompt(100, 20), 1);
    rig.add(prompt(200, 4), 1);
    assert_eq!(rig.step(), "#2 x1 decode 0@40", "one block is free: enough for the third, but not its turn");
}

#[test]
fn the_tail_is_preempted_goes_to_the_front_and_computes_its_output_again() {
    // Defect (f): after a preemption only the prompt was computed again. Defect (e): a sequence that came back was
    // taken for decoding though its KV was incomplete.
    let mut rig = Rig::new(SchedulerConfig { prefix_cache: false, ..config() }, 4);
    let (a, b) = (rig.add(prompt(0, 30), 10), rig.add(prompt(100, 30), 10));
    let c = rig.add(prompt(200, 4), 1);
    rig.step();
    rig.step();
    rig.step();
    // Both need a third block at position 32. None is free, so b, the tail, gives way.
    assert_eq!(rig.step(), "#4 x1 table 0[2]=3 decode 0@32 close 1");
    assert_eq!(rig.events.iter().filter(|event| matches!(event, SchedEvent::Preempted { .. })).count(), 1);
    assert_eq!(rig.waiting(), [b, c]);
    assert_eq!(rig.tokens(b).len(), 3, "its tokens survive");
    while rig.reason(a).is_none() {
        let text = rig.step();
        assert!(text.contains("decode 0@") && !text.contains("prefill"), "{text}");
    }
    // Defect (d): its table is built anew, from index 0.
    let back = rig.step();
    assert!(back.contains("open 0=1 ") && back.contains(" table 0[0]=2 table 0[1]=3 table 0[2]="), "{back}");
    assert!(back.contains("prefill 1@0..33! prefill 2@0..4!"), "{back}");
    rig.drain();
    assert_eq!(rig.tokens(b), alone(&prompt(100, 30), 10));
    assert_eq!(rig.scheduler.stats().preemptions, 1);
}

#[test]
fn nobody_is_admitted_in_a_step_that_preempted() {
    let mut rig = Rig::new(SchedulerConfig { prefix_cache: false, ..config() }, 4);
    rig.add(prompt(0, 32), 20);
    rig.add(prompt(100, 31), 20);
    rig.step();
    rig.add(prompt(200, 1), 1);
    // Sequence 1 gives way with two blocks, one of which the third could use.
    assert_eq!(rig.step(), "#2 x1 table 0[2]=3 decode 0@32 close 1");
    assert_eq!(rig.scheduler.stats().waiting, 2);
}

#[test]
fn the_least_urgent_keeps_its_blocks_while_it_waits_for_one_more() {
    let mut rig = Rig::new(SchedulerConfig { prefix_cache: false, ..config() }, 4);
    let (a, b) = (rig.add(prompt(0, 32), 4), rig.add(prompt(100, 16), 20));
    rig.step();
    // Sequence 0 takes the last block. Sequence 1 has nobody behind it to take one from.
    assert_eq!(rig.step(), "#2 x1 table 0[2]=3 decode 0@32");
    assert_eq!(rig.step(), "#3 x1 decode 0@33");
    assert_eq!(rig.step(), "#4 x1 decode 0@34");
    assert!(rig.reason(a).is_some());
    assert_eq!(rig.step(), "#5 x1 table 1[1]=3 decode 1@16 close 0");
    rig.drain();
    assert_eq!(rig.tokens(b), alone(&prompt(100, 16), 20));
    assert_eq!(rig.scheduler.stats().preemptions, 0);
}

#[test]
fn blocks_on_their_way_back_are_waited_for_instead_of_preempting() {
    let mut rig = Rig::new(SchedulerConfig { max_in_flight: 2, prefix_cache: false, ..config() }, 4);
    let (a, b) = (rig.add(prompt(0, 31), 20), rig.add(prompt(100, 20), 20));
    assert!(rig.schedule().ends_with("prefill 0@0..31! prefill 1@0..20!"));
    assert_eq!(rig.schedule(), "#2 x1 decode 0@31 decode 1@20");
    rig.scheduler.finish(b);
    rig.commit();
    // Submission 2 still uses the blocks of b: a waits for them. The back of b (block 3) is handed out first.
    assert_eq!(rig.schedule(), "-");
    rig.commit();
    assert_eq!(rig.schedule(), "#3 x1 table 0[2]=3 decode 0@32 close 1");
    assert_eq!(rig.scheduler.stats().preemptions, 0);
    rig.drain();
    assert_eq!(rig.tokens(a), alone(&prompt(0, 31), 20));
}

#[test]
fn a_preempted_sequence_comes_back_after_its_tokens_under_way() {
    let mut rig = Rig::new(SchedulerConfig { max_in_flight: 2, prefix_cache: false, ..config() }, 4);
    let (a, b) = (rig.add(prompt(0, 31), 20), rig.add(prompt(100, 31), 20));
    rig.schedule();
    rig.schedule();
    rig.commit();
    // Submission 2 is under way with a token of b; a needs a block, b gives way.
    assert_eq!(rig.schedule(), "-", "b's blocks are still in use");
    assert_eq!(rig.waiting(), [b]);
    rig.commit();
    assert_eq!(rig.tokens(b).len(), 2, "the token under way was kept");
    rig.drain();
    assert_eq!(rig.tokens(a), alone(&prompt(0, 31), 20));
    assert_eq!(rig.tokens(b), alone(&prompt(100, 31), 20));
}

#[test]
fn admission_leaves_room_for_the_first_token() {
    let mut rig = Rig::new(config(), 4);
    rig.add(prompt(0, 20), 12);
    rig.step();
    let full = rig.add(prompt(100, 32), 2);
    assert_eq!(rig.step(), "#2 x1 decode 0@20", "two blocks are free, but the first token would need a third");
    rig.drain();
    assert_eq!(rig.scheduler.stats().preemptions, 0);
    // The only token of a request gets no KV, so it needs no room.
    rig.add(prompt(200, 20), 12);
    rig.step();
    rig.add(prompt(300, 32), 1);
    assert!(rig.step().contains("prefill 3@0..32!"));
    assert_eq!(rig.tokens(full), alone(&prompt(100, 32), 2));
}
