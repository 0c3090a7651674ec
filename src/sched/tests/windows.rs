//! Blocks that slide out of the attention window.

use super::*;
use crate::sched::Preemption;

fn windowed(window: u32, blocks: u32, host_blocks: u32, config: SchedulerConfig) -> Rig {
    let mut options = MockOptions::default();
    options.capacity.window = Some(window);
    options.capacity.host_blocks = host_blocks;
    Rig::with(config, blocks, options)
}

#[test]
fn blocks_are_given_back_as_soon_as_no_row_can_see_them() {
    let mut rig = windowed(24, 16, 0, SchedulerConfig { prefix_cache: false, ..config() });
    let seq = rig.add(prompt(0, 20), 200);
    let mut most = 0;
    while rig.reason(seq).is_none() {
        rig.step();
        most = most.max(rig.scheduler.stats().blocks_used);
    }
    // 24 positions and the next one lie in at most three blocks.
    assert_eq!(most, 3);
    assert_eq!(rig.tokens(seq), alone(&prompt(0, 20), 200));
}

#[test]
fn chunks_free_blocks_too_and_names_stay_findable() {
    let config = SchedulerConfig { max_num_batched_tokens: 20, ..config() };
    let mut rig = windowed(24, 16, 0, config);
    let first = rig.add(prompt(0, 100), 2);
    rig.drain();
    let second = rig.add(prompt(0, 100), 2);
    rig.drain();
    assert_eq!(rig.tokens(first), rig.tokens(second));
    assert_eq!(rig.cached(second), [96]);
    assert_eq!(rig.scheduler.stats().blocks_used, 0);
}

#[test]
fn windows_survive_preemption_swap_and_forks() {
    for preemption in [Preemption::Recompute, Preemption::Swap] {
        for prefix_cache in [false, true] {
            let config = SchedulerConfig {
                preemption,
                prefix_cache,
                max_in_flight: 2,
                max_steps: 4,
                max_num_batched_tokens: 20,
                ..config()
            };
            let mut rig = windowed(60, 12, 16, config);
            let ids: Vec<SeqId> = (0..4).map(|index| rig.add(prompt(index * 100, 50), 60)).collect();
            let fork = rig.accept(NewSequence { fork_of: Some(ids[0]), ..request(prompt(0, 50), 60) });
            rig.drain();
            for (index, id) in (0..).zip(&ids) {
                assert_eq!(rig.tokens(*id), alone(&prompt(index * 100, 50), 60), "{preemption:?}");
            }
            assert_eq!(rig.tokens(fork), rig.tokens(ids[0]));
            let stats = rig.scheduler.stats();
            assert!(stats.preemptions > 0, "{stats:?}");
            assert_eq!((stats.blocks_used, stats.host_used), (0, 0));
        }
    }
}
