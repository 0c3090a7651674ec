//! Plans made before results are known, and several steps in one submission.

use super::*;

#[test]
fn run_ahead_plans_from_counts_and_stops_at_the_limit() {
    let mut rig = Rig::new(SchedulerConfig { max_in_flight: 3, ..config() }, 8);
    let seq = rig.add(prompt(0, 4), 3);
    assert!(rig.schedule().ends_with("prefill 0@0..4!"));
    assert_eq!(rig.schedule(), "#2 x1 decode 0@4");
    assert_eq!(rig.schedule(), "#3 x1 decode 0@5");
    assert_eq!(rig.scheduler.in_flight(), 3);
    assert_eq!(rig.schedule(), "-", "the window is full");
    rig.commit();
    assert_eq!(rig.schedule(), "-", "all tokens are under way");
    rig.drain();
    assert_eq!(rig.tokens(seq), alone(&prompt(0, 4), 3));
}

#[test]
fn several_steps_run_when_no_prompt_can_and_no_longer_than_anybody_needs() {
    let mut rig = Rig::new(SchedulerConfig { max_steps: 8, ..config() }, 16);
    let (a, b) = (rig.add(prompt(0, 14), 14), rig.add(prompt(100, 4), 4));
    assert!(rig.step().starts_with("#1 x1 "));
    assert_eq!(rig.step(), "#2 x8 table 0[1]=2 decode 0@14 decode 1@4");
    assert_eq!(rig.step(), "#3 x5 decode 0@22 close 1", "five are left of a");
    rig.drain();
    assert_eq!(rig.tokens(a), alone(&prompt(0, 14), 14));
    assert_eq!(rig.tokens(b), alone(&prompt(100, 4), 4));
}

#[test]
fn several_steps_give_way_to_a_prompt() {
    let mut rig = Rig::new(SchedulerConfig { max_steps: 8, ..config() }, 16);
    rig.add(prompt(0, 4), 40);
    rig.step();
    assert!(rig.step().starts_with("#2 x8 "));
    rig.add(prompt(100, 4), 4);
    assert!(rig.step().starts_with("#3 x1 "));
    assert!(rig.step().starts_with("#4 x8 "));
}

#[test]
fn several_steps_fall_back_to_one_before_anybody_is_preempted() {
    let mut rig = Rig::new(SchedulerConfig { max_steps: 8, prefix_cache: false, ..config() }, 3);
    rig.add(prompt(0, 14), 10);
    rig.add(prompt(100, 12), 10);
    rig.step();
    // Eight steps need two blocks and one is free.
    assert_eq!(rig.step(), "#2 x1 decode 0@14 decode 1@12");
    rig.drain();
    assert_eq!(rig.scheduler.stats().blocks_free, 3);
}

#[test]
fn several_steps_do_not_leave_a_row_behind_that_waits_for_blocks() {
    let mut rig = Rig::new(SchedulerConfig { max_steps: 8, max_in_flight: 2, prefix_cache: false, ..config() }, 5);
    let (a, b, c) = (rig.add(prompt(0, 31), 20), rig.add(prompt(100, 20), 20), rig.add(prompt(200, 4), 20));
    rig.schedule();
    assert_eq!(rig.schedule(), "#2 x1 decode 0@31 decode 1@20 decode 2@4", "no block is free for more");
    rig.scheduler.finish(b);
    rig.commit();
    assert_eq!(rig.schedule(), "#3 x1 decode 2@5 close 1", "a's next block is on its way");
    rig.commit();
    assert_eq!(rig.schedule(), "#4 x8 table 0[2]=3 decode 0@32 decode 2@6");
    rig.drain();
    assert_eq!(rig.tokens(a), alone(&prompt(0, 31), 20));
    assert_eq!(rig.tokens(c), alone(&prompt(200, 4), 20));
}
