//! Sequences that share a prompt.

use super::*;
use crate::sched::Preemption;

/// A prompt and `count` sequences that share it, each with a seed of its own.
fn family(rig: &mut Rig, tokens: &[TokenId], count: u64, max_tokens: u32) -> Vec<SeqId> {
    let mut ids: Vec<SeqId> = Vec::new();
    for seed in 0..count {
        let new = NewSequence { fork_of: ids.first().copied(), ..seeded(tokens, max_tokens, seed) };
        ids.push(rig.accept(new));
    }
    ids
}

fn seeded(tokens: &[TokenId], max_tokens: u32, seed: u64) -> NewSequence {
    let params = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
    NewSequence { sampling: SamplingRow::new(&params, seed, &[]), ..request(tokens.to_vec(), max_tokens) }
}

fn expected(tokens: &[TokenId], max_tokens: u32, seed: u64) -> Vec<TokenId> {
    let NewSequence { sampling, .. } = seeded(tokens, max_tokens, seed);
    MockOptions::default().continuation(tokens, &sampling, &[], tokens.len() + max_tokens as usize)
}

#[test]
fn the_prompt_is_computed_once_and_its_last_block_is_copied_before_the_first_write() {
    for prefix_cache in [false, true] {
        let mut rig = Rig::new(SchedulerConfig { prefix_cache, ..config() }, 32);
        let tokens = prompt(0, 40);
        let ids = family(&mut rig, &tokens, 3, 9);
        assert!(rig.step().ends_with("prefill 0@0..40!"), "the others wait for it");
        // Blocks 0 and 1 are shared, block 2 holds positions 32 to 39, of which 39 is computed again.
        assert_eq!(
            rig.step(),
            "#2 x1 open 1=1 open 2=2 table 1[0]=0 table 1[1]=1 table 1[2]=3 table 2[0]=0 table 2[1]=1 table 2[2]=4 \
             copy 2->3 copy 2->4 prefill 1@39..40! prefill 2@39..40! decode 0@40"
        );
        rig.drain();
        for (seed, id) in (0..).zip(&ids) {
            assert_eq!(rig.tokens(*id), expected(&tokens, 9, seed), "seed {seed}");
        }
        assert_eq!(rig.scheduler.stats().copies, 2);
        assert_eq!(rig.scheduler.stats().prefill_tokens, 42);
        assert_eq!(rig.scheduler.stats().blocks_used, 0);
    }
}

#[test]
fn nothing_is_copied_where_the_last_token_begins_a_block() {
    let mut rig = Rig::new(SchedulerConfig { prefix_cache: false, ..config() }, 32);
    let tokens = prompt(0, 33);
    let ids = family(&mut rig, &tokens, 2, 9);
    rig.step();
    assert_eq!(rig.step(), "#2 x1 open 1=1 table 1[0]=0 table 1[1]=1 table 1[2]=3 prefill 1@32..33! decode 0@33");
    rig.drain();
    assert_eq!(rig.tokens(ids[1]), expected(&tokens, 9, 1));
    assert_eq!(rig.scheduler.stats().copies, 0);
}

#[test]
fn one_token_prompts_and_vanished_leaders_do_without_sharing() {
    let mut rig = Rig::new(config(), 32);
    let ids = family(&mut rig, &[7], 3, 5);
    rig.drain();
    for (seed, id) in (0..).zip(&ids) {
        assert_eq!(rig.tokens(*id), expected(&[7], 5, seed));
    }
    let tokens = prompt(100, 30);
    let ids = family(&mut rig, &tokens, 3, 5);
    rig.scheduler.finish(ids[0]);
    rig.drain();
    for (seed, id) in (1..).zip(&ids[1..]) {
        assert_eq!(rig.tokens(*id), expected(&tokens, 5, seed));
    }
}

#[test]
fn a_family_survives_preemption_and_swap() {
    // P-23: n above 1 with preemption and swap leaked blocks elsewhere.
    for preemption in [Preemption::Recompute, Preemption::Swap] {
        for prefix_cache in [false, true] {
            let config = SchedulerConfig { preemption, prefix_cache, max_in_flight: 2, max_steps: 4, ..config() };
            let mut rig = Rig::with_host(config, 9, 16);
            let tokens = prompt(0, 40);
            let ids = family(&mut rig, &tokens, 4, 40);
            rig.drain();
            for (seed, id) in (0..).zip(&ids) {
                assert_eq!(rig.tokens(*id), expected(&tokens, 40, seed), "{preemption:?}, seed {seed}");
            }
            let stats = rig.scheduler.stats();
            assert!(stats.preemptions > 0 && stats.copies > 0, "{stats:?}");
            assert_eq!((stats.swaps_out > 0, stats.swaps_out), (preemption == Preemption::Swap, stats.swaps_in));
            assert_eq!((stats.blocks_used, stats.host_used), (0, 0), "{stats:?}");
        }
    }
}

#[test]
fn another_prompt_or_salt_is_refused() {
    let mut rig = Rig::new(config(), 32);
    let leader = rig.add(prompt(0, 20), 5);
    let other = NewSequence { fork_of: Some(leader), ..request(prompt(1, 20), 5) };
    let salted = NewSequence { fork_of: Some(leader), cache_salt: Some("s".into()), ..request(prompt(0, 20), 5) };
    for new in [other, salted] {
        let message = rig.scheduler.add(new, &mut rig.events).unwrap_err().to_string();
        assert!(message.contains("must have its prompt and salt"), "{message}");
    }
}
