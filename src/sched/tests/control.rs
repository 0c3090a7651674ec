//! Pause, hold, reset, lost devices, the log of cached blocks, and the watchdog.

use super::*;
use crate::cache::{BlockHash, HashChain, KvEvent, Medium};
use crate::runner::Capacity;
use crate::sched::{Pause, PreemptReason, Preemption};

#[test]
fn a_pause_for_new_ones_lets_the_others_go_on_and_a_whole_one_does_not() {
    let mut rig = Rig::new(config(), 16);
    rig.add(prompt(0, 20), 5);
    rig.step();
    rig.scheduler.set_pause(Pause::New);
    let late = rig.add(prompt(100, 20), 5);
    assert_eq!(rig.step(), "#2 x1 decode 0@20");
    rig.scheduler.set_pause(Pause::All);
    assert_eq!(rig.schedule(), "-");
    assert!(rig.scheduler.awaits_caller() && rig.scheduler.has_work());
    rig.scheduler.set_pause(Pause::None);
    assert!(!rig.scheduler.awaits_caller());
    rig.drain();
    assert_eq!(rig.tokens(late), alone(&prompt(100, 20), 5));
}

#[test]
fn a_held_sequence_holds_nobody_up_and_comes_in_its_turn() {
    let mut rig = Rig::new(SchedulerConfig { max_num_seqs: 1, ..config() }, 16);
    let held = rig.accept(NewSequence { held: true, ..request(prompt(0, 20), 3) });
    let second = rig.add(prompt(100, 20), 3);
    let third = rig.add(prompt(200, 20), 3);
    assert!(rig.step().ends_with("prefill 1@0..20!"));
    rig.scheduler.release(held);
    rig.drain();
    let ends: Vec<SeqId> = (rig.events.iter())
        .filter_map(|event| match event {
            SchedEvent::Finished { seq, .. } => Some(*seq),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [second, held, third]);
    let never = rig.accept(NewSequence { held: true, ..request(prompt(0, 20), 3) });
    assert_eq!(rig.schedule(), "-");
    assert!(rig.scheduler.awaits_caller());
    rig.scheduler.finish(never);
    assert!(!rig.scheduler.has_work());
}

#[test]
fn a_reset_is_refused_while_blocks_are_in_use_unless_it_may_preempt() {
    let config = SchedulerConfig { preemption: Preemption::Swap, host_cache: true, max_in_flight: 2, ..config() };
    let mut rig = Rig::with_host(config, 8, 8);
    let old = rig.add(prompt(0, 40), 2);
    rig.drain();
    let running = rig.add(prompt(0, 40), 20);
    rig.schedule();
    rig.schedule();
    assert_eq!(rig.cached(running), [32]);
    let message = rig.scheduler.reset_prefix_cache(false, &mut rig.events).unwrap_err().to_string();
    assert!(message.contains("3 blocks"), "{message}");
    rig.scheduler.reset_prefix_cache(true, &mut rig.events).unwrap();
    let reasons =
        rig.events.iter().filter(|event| matches!(event, SchedEvent::Preempted { reason: PreemptReason::Reset, .. }));
    assert_eq!(reasons.count(), 1);
    assert_eq!(rig.scheduler.stats().blocks_cached, 0);
    rig.drain();
    // What was under way at the reset must not come back into the cache under the old names.
    assert_eq!(rig.cached(running), [32, 0]);
    assert_eq!(rig.tokens(running), alone(&prompt(0, 40), 20));
    assert_eq!(rig.tokens(old), alone(&prompt(0, 40), 2));
}

#[test]
fn a_lost_device_takes_the_host_blocks_along() {
    let config = SchedulerConfig { preemption: Preemption::Swap, ..config() };
    let mut rig = Rig::with_host(config, 4, 8);
    let ids = [rig.add(prompt(0, 30), 10), rig.add(prompt(100, 30), 10)];
    (0..4).for_each(|_| drop(rig.step()));
    assert_eq!(rig.scheduler.stats().swaps_out, 1);
    rig.scheduler.requeue_all(&mut rig.events);
    let options = MockOptions::default();
    let capacity = Capacity { block_count: 4, host_blocks: 8, ..options.capacity };
    rig.runner = MockRunner::new(MockOptions { capacity, ..options });
    rig.drain();
    for (index, id) in (0..).zip(ids) {
        assert_eq!(rig.tokens(id), alone(&prompt(index * 100, 30), 10));
    }
}

#[test]
fn the_log_tells_what_can_be_found() {
    let mut rig = Rig::new(config(), 3);
    rig.scheduler = Scheduler::new(config(), rig.runner.capacity()).unwrap().with_kv_events().with_hash_seed("s");
    rig.add(prompt(0, 33), 1);
    rig.drain();
    let mut chain = HashChain::new("s");
    let first = chain.next(None, &prompt(0, 16), None);
    let second = chain.next(Some(first), &prompt(16, 16), None);
    let stored = |hash: BlockHash, parent, start| KvEvent::BlockStored {
        hash,
        parent,
        token_ids: prompt(start, 16),
        medium: Medium::Gpu,
    };
    let log: Vec<KvEvent> = rig.scheduler.drain_kv_events().collect();
    assert_eq!(log, [stored(first, None, 0), stored(second, Some(first), 16)]);
    rig.add(prompt(100, 40), 1);
    rig.step();
    let log: Vec<KvEvent> = rig.scheduler.drain_kv_events().collect();
    let removed = |hash| KvEvent::BlockRemoved { hash, medium: Medium::Gpu };
    assert_eq!(log[..2], [removed(second), removed(first)], "the end of the chain goes first");
    rig.drain();
    rig.scheduler.reset_prefix_cache(false, &mut rig.events).unwrap();
    assert_eq!(rig.scheduler.drain_kv_events().last(), Some(KvEvent::AllBlocksCleared));
}

#[test]
fn the_watchdog_ends_the_one_in_front_and_the_others_go_on() {
    let mut rig = Rig::new(SchedulerConfig { watchdog_steps: 3, max_num_batched_tokens: 4, ..config() }, 16);
    let (stuck, other) = (rig.add(prompt(0, 30), 5), rig.add(prompt(100, 4), 2));
    rig.step();
    // As if the same piece were computed again and again.
    for _ in 0..3 {
        rig.scheduler.sequences.get_mut(&stuck).unwrap().furthest = 1000;
        rig.step();
    }
    assert_eq!(rig.reason(stuck), Some(FinishReason::Stalled));
    rig.drain();
    assert_eq!(rig.tokens(other), alone(&prompt(100, 4), 2));
    assert_eq!(rig.scheduler.stats().blocks_used, 0);
}
