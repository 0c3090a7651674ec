//! Swapping to the host, and the host as the prefix cache's second level.

use super::*;
use crate::runner::Costs;
use crate::sched::{Estimates, Preemption, Released};

fn swapping() -> SchedulerConfig {
    SchedulerConfig { preemption: Preemption::Swap, prefix_cache: false, host_cache: false, ..config() }
}

fn preempted(rig: &Rig) -> Vec<(Released, Estimates)> {
    let how = |event: &SchedEvent| match event {
        SchedEvent::Preempted { how, estimates, .. } => Some((*how, *estimates)),
        _ => None,
    };
    rig.events.iter().filter_map(how).collect()
}

#[test]
fn kv_moves_to_the_host_and_back_and_decoding_goes_on_where_it_was() {
    let mut rig = Rig::with_host(swapping(), 4, 8);
    let (a, b) = (rig.add(prompt(0, 30), 10), rig.add(prompt(100, 30), 10));
    rig.step();
    rig.step();
    rig.step();
    // Both need a third block at position 32; b gives way with two blocks.
    assert_eq!(rig.step(), "#4 x1 table 0[2]=3 save 2->h0 save 3->h1 decode 0@32 close 1");
    assert_eq!(rig.scheduler.stats().host_used, 2);
    while rig.reason(a).is_none() {
        assert!(!rig.step().contains("prefill"));
    }
    // Defect (d): its table is built anew. Defect (e): it goes on with its newest token, not as if nothing were missing.
    let back = rig.step();
    assert!(back.contains(" load h0->") && back.contains(" load h1->"), "{back}");
    assert!(back.contains("prefill 1@32..33!"), "{back}");
    rig.drain();
    assert_eq!(rig.tokens(b), alone(&prompt(100, 30), 10));
    let stats = rig.scheduler.stats();
    assert_eq!((stats.swaps_out, stats.swaps_in, stats.host_used, stats.prefill_tokens), (1, 1, 0, 61));
}

#[test]
fn a_full_host_means_computing_again() {
    let mut rig = Rig::with_host(swapping(), 4, 1);
    let (_, b) = (rig.add(prompt(0, 30), 10), rig.add(prompt(100, 30), 10));
    rig.drain();
    assert!(matches!(preempted(&rig)[..], [(Released::Dropped, _)]));
    assert_eq!(rig.tokens(b), alone(&prompt(100, 30), 10));
}

#[test]
fn a_half_computed_prompt_comes_back_half_computed() {
    // Defect (e) again: the prompt of b is not done when a needs its blocks.
    let config = SchedulerConfig { max_num_batched_tokens: 20, ..swapping() };
    let mut rig = Rig::with_host(config, 8, 8);
    let (a, b) = (rig.add(prompt(0, 15), 60), rig.add(prompt(100, 100), 4));
    rig.drain();
    // 5 tokens beside the prompt of a, then 19 beside its decoding: 24 tokens in two blocks.
    assert!(matches!(preempted(&rig)[..], [(Released::Swapped { blocks: 2 }, _)]), "{:?}", preempted(&rig));
    assert_eq!(rig.tokens(a), alone(&prompt(0, 15), 60));
    assert_eq!(rig.tokens(b), alone(&prompt(100, 100), 4));
    assert_eq!(rig.scheduler.stats().prefill_tokens, 115, "nothing is computed twice");
}

#[test]
fn cancelled_while_away_gives_the_host_its_blocks_back() {
    let mut rig = Rig::with_host(swapping(), 4, 8);
    let (_, b) = (rig.add(prompt(0, 30), 10), rig.add(prompt(100, 30), 10));
    (0..4).for_each(|_| drop(rig.step()));
    assert_eq!(rig.scheduler.stats().host_used, 2);
    rig.scheduler.finish(b);
    assert_eq!(rig.scheduler.stats().host_used, 0);
    rig.drain();
}

#[test]
fn a_save_that_no_plan_carried_yet_is_in_the_next_one() {
    let mut rig = Rig::with_host(SchedulerConfig { max_in_flight: 2, ..swapping() }, 4, 8);
    let (a, b) = (rig.add(prompt(0, 31), 20), rig.add(prompt(100, 31), 20));
    rig.schedule();
    rig.schedule();
    rig.commit();
    // Submission 2 still writes to the blocks of b, which gives way: nothing can be planned now.
    assert_eq!(rig.schedule(), "-");
    rig.commit();
    let text = rig.schedule();
    assert!(text.contains(" save ") && text.contains("decode 0@32"), "{text}");
    rig.drain();
    assert_eq!(rig.tokens(a), alone(&prompt(0, 31), 20));
    assert_eq!(rig.tokens(b), alone(&prompt(100, 31), 20));
}

#[test]
fn a_swap_that_does_not_fit_leaves_the_cached_prefixes_where_they_are() {
    let config = SchedulerConfig { preemption: Preemption::Swap, host_cache: true, ..config() };
    let mut rig = Rig::with_host(config, 6, 2);
    rig.add(prompt(500, 33), 1);
    rig.drain();
    // Takes all blocks: two cached ones go to the host and fill it.
    rig.add(prompt(600, 90), 1);
    rig.drain();
    assert_eq!(rig.scheduler.stats().host_cached, 2);
    rig.add(prompt(0, 40), 40);
    rig.add(prompt(100, 40), 40);
    rig.drain();
    assert!(preempted(&rig).iter().all(|(how, _)| *how == Released::Dropped), "{:?}", preempted(&rig));
    assert!(!preempted(&rig).is_empty());
}

#[test]
fn auto_takes_the_cheaper_way_and_says_what_it_compared() {
    let config = SchedulerConfig { preemption: Preemption::Auto, ..swapping() };
    let cases = [
        (Costs::default(), false),
        (Costs { prefill_micros_per_token: 10.0, move_micros_per_block: 20.0 }, true),
        (Costs { prefill_micros_per_token: 1.0, move_micros_per_block: 20.0 }, false),
    ];
    for (costs, swaps) in cases {
        let mut rig = Rig::with_host(config.clone(), 4, 8);
        rig.scheduler.set_costs(costs);
        rig.add(prompt(0, 30), 10);
        rig.add(prompt(100, 30), 10);
        rig.drain();
        let (how, estimates) = preempted(&rig)[0];
        assert_eq!(matches!(how, Released::Swapped { .. }), swaps, "{costs:?}");
        // 32 tokens in two blocks, there and back.
        let recompute_micros = 32 * costs.prefill_micros_per_token as u64;
        let swap_micros = 4 * costs.move_micros_per_block as u64;
        assert_eq!(estimates, Estimates { recompute_micros, swap_micros });
    }
}

#[test]
fn evicted_prefixes_come_back_from_the_host() {
    let mut rig = Rig::with_host(SchedulerConfig { host_cache: true, ..config() }, 4, 8);
    rig.add(prompt(0, 33), 1);
    rig.drain();
    // Needs all four blocks: the two cached ones go to the host.
    rig.add(prompt(100, 60), 1);
    let text = rig.step();
    assert_eq!(text.matches(" save ").count(), 2, "{text}");
    rig.drain();
    let again = rig.add(prompt(0, 33), 1);
    let text = rig.step();
    assert_eq!(text.matches(" load ").count(), 2, "{text}");
    assert!(text.ends_with("prefill 2@32..33!"), "{text}");
    rig.drain();
    assert_eq!(rig.tokens(again), alone(&prompt(0, 33), 1));
    let stats = rig.scheduler.stats();
    assert_eq!((stats.host_hits, stats.prefix_hits), (32, 32));
    // Two blocks of the second prompt went to the host for this one; its first never left, and nothing was saved twice.
    let other = rig.add(prompt(100, 60), 1);
    rig.drain();
    assert_eq!(rig.cached(other), [48]);
    assert_eq!(rig.scheduler.stats().host_cached, 4);
}

#[test]
fn salts_separate_the_host_too() {
    // P-41: an external store forgot the salt.
    let mut rig = Rig::with_host(SchedulerConfig { host_cache: true, ..config() }, 4, 8);
    rig.add(prompt(0, 33), 1);
    rig.drain();
    rig.add(prompt(100, 60), 1);
    rig.drain();
    let salted = rig.accept(NewSequence { cache_salt: Some("team".into()), ..request(prompt(0, 33), 1) });
    rig.drain();
    assert_eq!(rig.cached(salted), [0]);
}

#[test]
fn swapped_blocks_serve_others_and_need_no_second_save() {
    let config = SchedulerConfig { preemption: Preemption::Swap, host_cache: true, ..config() };
    let mut rig = Rig::with_host(config, 6, 16);
    let (a, b) = (rig.add(prompt(0, 40), 40), rig.add(prompt(100, 40), 40));
    rig.drain();
    assert_eq!(rig.tokens(a), alone(&prompt(0, 40), 40));
    assert_eq!(rig.tokens(b), alone(&prompt(100, 40), 40));
    let stats = rig.scheduler.stats();
    assert!(stats.swaps_out > 0 && stats.swaps_in == stats.swaps_out, "{stats:?}");
    assert_eq!(stats.host_used, 0);
    assert!(stats.host_cached > 0, "full blocks keep their names there");
}
