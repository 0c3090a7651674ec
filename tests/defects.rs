//! Defects of other engines that octavo must not have, as far as scheduler and mock can show them: (a) to (j) of a small
//! teaching engine, and reports from the field. What concerns kernels (batch invariance, padded rows) is in `metamorphic.rs`
//! and `gpu_golden.rs`; that a caller's sampling parameters stay as they were (g) is in `engine_mock`.

use octavo::base::{RequestId, SeqId, TokenId};
use octavo::error::ErrorKind;
use octavo::runner::mock::{MockOptions, MockRunner};
use octavo::runner::{ModelRunner, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::StepPlan;
use octavo::sched::{NewSequence, Preemption, Released, SchedEvent, Scheduler, SchedulerConfig};
use std::time::Duration;

/// Scheduler and mock, stepped by hand; every call is checked.
struct Rig {
    scheduler: Scheduler,
    runner: MockRunner,
    options: MockOptions,
    events: Vec<SchedEvent>,
    plans: Vec<StepPlan>,
    added: Vec<(SeqId, NewSequence)>,
}

impl Rig {
    /// A device of `blocks` blocks and `host` host blocks; chunks of at most `chunk` tokens, one step and submission at a time.
    fn new(blocks: u32, host: u32, chunk: usize, change: impl FnOnce(&mut SchedulerConfig)) -> Self {
        let mut options = MockOptions::default();
        options.capacity.block_count = blocks;
        options.capacity.host_blocks = host;
        let mut config = SchedulerConfig {
            max_num_batched_tokens: chunk,
            max_steps: 1,
            max_in_flight: 1,
            preemption: if host > 0 { Preemption::Swap } else { Preemption::Recompute },
            ..SchedulerConfig::for_capacity(&options.capacity)
        };
        change(&mut config);
        config.host_cache &= config.prefix_cache;
        Self {
            scheduler: Scheduler::new(config, options.capacity).unwrap(),
            runner: MockRunner::new(options.clone()),
            options,
            events: Vec::new(),
            plans: Vec::new(),
            added: Vec::new(),
        }
    }

    fn add(&mut self, prompt: &[TokenId], max_tokens: u32) -> SeqId {
        self.accept(request(prompt, max_tokens))
    }

    fn accept(&mut self, new: NewSequence) -> SeqId {
        let seq = self.scheduler.add(new.clone(), &mut self.events).unwrap();
        self.added.push((seq, new));
        seq
    }

    /// One submission and its result.
    fn step(&mut self) {
        let mut plan = StepPlan::default();
        if self.scheduler.schedule(&mut plan, &mut self.events) {
            self.scheduler.check_plan(&plan);
            self.runner.submit(&plan).unwrap_or_else(|error| panic!("{plan}: {error}"));
            self.plans.push(plan);
        }
        let mut result = StepResult::default();
        if self.runner.poll(Wait::AtMost(Duration::from_secs(1)), &mut result).unwrap() {
            self.scheduler.commit(&result, &mut self.events);
        }
        self.scheduler.check();
    }

    /// To the end of everything; then each sequence must have what it yields alone, and nothing may be held.
    fn drain(&mut self) {
        for _ in 0..5000 {
            if !self.scheduler.has_work() {
                break;
            }
            self.step();
        }
        assert!(!self.scheduler.has_work(), "no end in sight: {:?}", self.scheduler.stats());
        for (seq, new) in &self.added {
            let limit = new.prompt.len() + new.max_tokens as usize;
            let alone = self.options.continuation(&new.prompt, &new.sampling, &new.stop_tokens, limit);
            let tokens = self.tokens(*seq);
            match self
                .events
                .iter()
                .any(|event| matches!(event, SchedEvent::Finished { seq: ended, .. } if ended == seq))
            {
                true => assert_eq!(tokens, alone, "sequence {seq}"),
                false => assert!(alone.starts_with(&tokens), "cancelled sequence {seq}"),
            }
        }
        let stats = self.scheduler.stats();
        assert_eq!((stats.blocks_free, stats.host_used), (stats.blocks_total, 0), "blocks leaked");
    }

    fn tokens(&self, of: SeqId) -> Vec<TokenId> {
        let token = |event: &SchedEvent| match *event {
            SchedEvent::Token { seq, token, .. } if seq == of => Some(token),
            _ => None,
        };
        self.events.iter().filter_map(token).collect()
    }

    /// Cached tokens of each admission.
    fn cached(&self, of: SeqId) -> Vec<usize> {
        let cached = |event: &SchedEvent| match *event {
            SchedEvent::Admitted { seq, cached_tokens, .. } if seq == of => Some(cached_tokens),
            _ => None,
        };
        self.events.iter().filter_map(cached).collect()
    }

    /// How it lost its slot, and with how many tokens computed, each time.
    fn preempted(&self, of: SeqId) -> Vec<(Released, u32)> {
        let lost = |event: &SchedEvent| match *event {
            SchedEvent::Preempted { seq, how, tokens, .. } if seq == of => Some((how, tokens)),
            _ => None,
        };
        self.events.iter().filter_map(lost).collect()
    }

    /// Ranges of known tokens computed, in order.
    fn chunks(&self, of: SeqId) -> Vec<(u32, u32)> {
        let rows = self.plans.iter().flat_map(|plan| &plan.prefill);
        rows.filter(|chunk| chunk.seq == of).map(|chunk| (chunk.start, chunk.start + chunk.len)).collect()
    }
}

fn request(prompt: &[TokenId], max_tokens: u32) -> NewSequence {
    let row = SamplingRow::new(&SamplingParams::default(), 0, &[]);
    NewSequence::new(RequestId(0), prompt.to_vec(), max_tokens, row)
}

/// `len` tokens that no other start shares.
fn tokens(start: u32, len: u32) -> Vec<TokenId> {
    (0..len).map(|at| (start * 100 + at) % 1000).collect()
}

#[test]
fn a_equal_tokens_after_another_prefix_or_elsewhere_are_no_hit() {
    let mut rig = Rig::new(64, 0, 256, |_| ());
    let (first, other, same) = (tokens(1, 16), tokens(2, 16), tokens(3, 17));
    rig.add(&[first.clone(), same.clone()].concat(), 2);
    rig.drain();
    let elsewhere = rig.add(&same, 2);
    let after_another = rig.add(&[other, same.clone()].concat(), 2);
    let again = rig.add(&[first, same].concat(), 2);
    rig.drain();
    assert_eq!([elsewhere, after_another, again].map(|seq| rig.cached(seq)[0]), [0, 0, 32]);
}

#[test]
fn b_a_cached_block_that_comes_back_to_life_is_not_handed_out_again() {
    // Two blocks stay cached; the newcomer takes them over and the next one all the rest.
    let mut rig = Rig::new(6, 0, 256, |_| ());
    let prompt = tokens(1, 33);
    rig.add(&prompt, 1);
    rig.drain();
    let revived = rig.add(&prompt, 14);
    let greedy = rig.add(&tokens(5, 46), 2);
    rig.drain();
    assert_eq!(rig.cached(revived), [32]);
    assert_eq!(rig.preempted(greedy), []);
}

#[test]
fn c_blocks_in_use_are_never_evicted() {
    let mut rig = Rig::new(8, 0, 256, |_| ());
    let prompt = tokens(1, 40);
    rig.add(&prompt, 60);
    rig.step();
    // One shares the blocks of the first, then a stream of others wants every block there is.
    rig.add(&prompt, 8);
    for start in 2..12 {
        rig.add(&tokens(start, 30), 4);
    }
    for _ in 0..400 {
        let before = rig.events.len();
        rig.step();
        for event in &rig.events[before..] {
            if let SchedEvent::Evicted { block, .. } = event {
                let holders = rig
                    .plans
                    .last()
                    .map_or(0, |plan| plan.table_updates.iter().filter(|update| update.block == *block).count());
                assert!(holders <= 1, "an evicted block has {holders} new holders");
            }
        }
    }
    rig.drain();
}

/// A small one decodes into the last block, and a larger, younger one must go.
fn squeezed(host: u32, chunk: usize) -> (Rig, SeqId, SeqId) {
    let mut rig = Rig::new(6, host, chunk, |config| {
        config.max_num_seqs = 2;
        config.prefix_cache = false;
    });
    let small = rig.add(&tokens(1, 14), 40);
    let large = rig.add(&tokens(2, 60), 10);
    (rig, small, large)
}

#[test]
fn d_after_a_swap_the_tables_name_the_new_blocks_and_each_is_freed_once() {
    let (mut rig, _, large) = squeezed(8, 256);
    rig.drain();
    let lost = rig.preempted(large);
    assert!(lost.iter().any(|(how, _)| matches!(how, Released::Swapped { blocks } if *blocks >= 4)), "{lost:?}");
    let loads = rig.plans.iter().map(|plan| plan.loads.len()).sum::<usize>();
    assert!(loads >= 4, "{loads} loads");
    assert_eq!(rig.preempted(large).len(), rig.cached(large).len() - 1);
}

#[test]
fn e_a_half_computed_prompt_comes_back_half_computed() {
    // Two prompt tokens a step beside the one that decodes.
    let (mut rig, _, large) = squeezed(8, 3);
    rig.drain();
    let (_, computed) = *rig.preempted(large).first().expect("it had to go");
    assert!(computed < 60, "it was to go in the middle of its prompt, not after {computed} tokens");
    // It goes on where it was: every known position is computed once.
    let chunks = rig.chunks(large);
    assert!(chunks.windows(2).all(|pair| pair[0].1 == pair[1].0), "{chunks:?}");
    assert!(chunks.iter().any(|chunk| chunk.0 == computed));
}

#[test]
fn f_what_was_generated_is_computed_again_after_a_preemption() {
    let mut rig = Rig::new(5, 0, 256, |config| config.prefix_cache = false);
    rig.add(&tokens(1, 30), 40);
    let tail = rig.add(&tokens(2, 20), 30);
    rig.drain();
    let (how, computed) = *rig.preempted(tail).first().expect("it had to go");
    assert_eq!(how, Released::Dropped);
    assert!(computed > 20, "it was to have generated something");
    let again = rig.chunks(tail).into_iter().filter(|chunk| chunk.0 == 0).nth(1).expect("it starts over");
    assert!(again.1 > 20, "only the prompt was computed again: {again:?}");
}

#[test]
fn h_p20_what_can_never_fit_is_refused_and_holds_nobody_up() {
    let mut rig = Rig::new(4, 0, 256, |_| ());
    let error = rig.scheduler.add(request(&tokens(1, 80), 1), &mut rig.events).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Memory);
    assert!(error.to_string().contains("64"), "{error}");
    rig.add(&tokens(2, 20), 5);
    rig.drain();
}

#[test]
fn i_hits_save_work() {
    let mut rig = Rig::new(64, 0, 256, |_| ());
    let prompt = tokens(1, 70);
    rig.add(&prompt, 2);
    rig.drain();
    let before = rig.scheduler.stats().prefill_tokens;
    let again = rig.add(&prompt, 2);
    rig.drain();
    assert_eq!(rig.chunks(again), [(64, 70)]);
    assert_eq!(rig.scheduler.stats().prefill_tokens - before, 6);
}

#[test]
fn j_only_the_last_chunk_samples() {
    let mut rig = Rig::new(64, 0, 16, |_| ());
    rig.add(&tokens(1, 50), 1);
    for expected in [0, 0, 0, 1] {
        let before = rig.events.iter().filter(|event| matches!(event, SchedEvent::Token { .. })).count();
        rig.step();
        let after = rig.events.iter().filter(|event| matches!(event, SchedEvent::Token { .. })).count();
        assert_eq!(after - before, expected);
    }
    assert_eq!(rig.plans.iter().map(|plan| plan.prefill[0].last).collect::<Vec<_>>(), [false, false, false, true]);
    rig.drain();
}

/// Twenty prompts in three families on a pool that hardly holds two of them.
fn busy(host: u32, change: impl FnOnce(&mut SchedulerConfig)) -> Rig {
    let mut rig = Rig::new(9, host, 48, |config| {
        config.max_in_flight = 2;
        change(config);
    });
    for index in 0..20 {
        let prompt = [tokens(index % 3, 40), tokens(index + 5, 9)].concat();
        rig.add(&prompt, 20 + 2 * index);
        rig.step();
    }
    rig.drain();
    rig
}

#[test]
fn p19_no_cache_changes_a_token_however_small_the_pool() {
    let all = |rig: &Rig| rig.added.iter().map(|(seq, _)| rig.tokens(*seq)).collect::<Vec<_>>();
    let plain = busy(0, |config| config.prefix_cache = false);
    assert_eq!(plain.scheduler.stats().prefix_hits, 0);
    let cached = busy(0, |_| ());
    assert!(cached.scheduler.stats().prefix_hits > 0 && cached.scheduler.stats().evictions > 0);
    let on_host = busy(12, |config| config.host_cache = true);
    assert!(on_host.scheduler.stats().host_hits > 0, "{:?}", on_host.scheduler.stats());
    let swapped = busy(12, |config| config.host_cache = false);
    assert!(swapped.scheduler.stats().swaps_in > 0, "{:?}", swapped.scheduler.stats());
    for other in [cached, on_host, swapped] {
        assert_eq!(all(&plain), all(&other));
    }
}

#[test]
fn p21_preempting_for_blocks_that_are_still_in_use_is_no_thrashing() {
    // Run-ahead keeps freed blocks busy for two submissions; who waits for them must not push others out meanwhile.
    let mut rig = Rig::new(7, 0, 64, |config| config.max_in_flight = 3);
    for start in 1..6 {
        rig.add(&tokens(start, 14), 30);
    }
    rig.drain();
    let stats = rig.scheduler.stats();
    // 5 * 43 positions on 7 * 16: each can be pushed out once or twice, not at every block.
    assert!((1..=10).contains(&stats.preemptions), "{stats:?}");
}

#[test]
fn p22_a_return_with_a_hit_counts_every_token_once() {
    let mut rig = Rig::new(8, 0, 256, |_| ());
    rig.add(&tokens(1, 30), 60);
    let tail = rig.add(&tokens(2, 40), 40);
    rig.drain();
    assert!(!rig.preempted(tail).is_empty());
    let returned = rig.cached(tail)[1];
    assert!(returned >= 32, "it finds {returned} of its own tokens");
    assert!(rig.chunks(tail)[1..].iter().all(|chunk| chunk.0 > 0));
}

/// A prompt in three sequences with draws of their own.
fn forks(rig: &mut Rig, prompt: &[TokenId], max_tokens: u32) -> Vec<SeqId> {
    let params = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
    let mut leader = None;
    (0..3)
        .map(|sibling| {
            let sampling = SamplingRow::new(&params, 77 + sibling, &[]);
            let seq = rig.accept(NewSequence { sampling, fork_of: leader, ..request(prompt, max_tokens) });
            leader = leader.or(Some(seq));
            seq
        })
        .collect()
}

#[test]
fn p23_several_sequences_of_a_prompt_survive_preemption_and_swap() {
    for host in [0, 3, 12] {
        let mut rig = Rig::new(9, host, 32, |config| config.max_in_flight = 2);
        forks(&mut rig, &tokens(1, 37), 40);
        rig.add(&tokens(2, 30), 30);
        forks(&mut rig, &tokens(3, 20), 30);
        rig.drain();
        let stats = rig.scheduler.stats();
        assert!(stats.copies > 0 && stats.preemptions > 0, "{stats:?}");
        assert_eq!(stats.swaps_out > 0, host > 0, "{stats:?}");
    }
}

#[test]
fn p27_different_seeds_differ() {
    let mut rig = Rig::new(64, 0, 256, |_| ());
    let siblings = forks(&mut rig, &tokens(1, 20), 12);
    rig.drain();
    let outputs: Vec<_> = siblings.iter().map(|seq| rig.tokens(*seq)).collect();
    assert!(outputs[0] != outputs[1] && outputs[1] != outputs[2] && outputs[0] != outputs[2]);
}

#[test]
fn p41_salts_part_caches_on_the_host_too() {
    let mut rig = Rig::new(5, 16, 256, |config| config.host_cache = true);
    let prompt = tokens(1, 49);
    let salted = |salt: &str| NewSequence { cache_salt: Some(salt.into()), ..request(&prompt, 2) };
    rig.accept(salted("alice"));
    rig.drain();
    // Others push it out to the host.
    for start in 3..6 {
        rig.add(&tokens(start, 60), 2);
    }
    rig.drain();
    let (bob, nobody) = (rig.accept(salted("bob")), rig.add(&prompt, 2));
    rig.drain();
    assert_eq!((rig.cached(bob)[0], rig.cached(nobody)[0]), (0, 0));
    let alice = rig.accept(salted("alice"));
    rig.drain();
    assert_eq!(rig.cached(alice), [48], "one's own salt hits, from the host");
}

#[test]
fn p42_who_leaves_during_a_move_leaves_nothing_behind() {
    for patience in 0..12 {
        let (mut rig, _, large) = squeezed(8, 256);
        for _ in 0..200 {
            if !rig.preempted(large).is_empty() {
                break;
            }
            rig.step();
        }
        assert!(!rig.preempted(large).is_empty());
        // At any moment: while it is being saved, on the host, or on its way back.
        for _ in 0..patience * 4 {
            rig.step();
        }
        rig.scheduler.finish(large);
        rig.scheduler.check();
        rig.drain();
    }
}
