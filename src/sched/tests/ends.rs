//! How sequences end, and how they survive a device.

use super::*;
use crate::runner::SampleFault;

#[test]
fn a_stop_token_is_reported_before_the_end_and_later_tokens_are_dropped() {
    let mut rig = Rig::new(SchedulerConfig { max_steps: 8, ..config() }, 16);
    let expected = alone(&prompt(0, 4), 20);
    // The device does not know this stop, so that it goes on; the host cuts.
    let stop = expected[3];
    assert!(!expected[..3].contains(&stop));
    let seq = rig.accept(NewSequence { stop_tokens: vec![stop], ..request(prompt(0, 4), 20) });
    rig.drain();
    assert_eq!(rig.tokens(seq), expected[..4]);
    let tail: Vec<_> = rig.events.iter().rev().take(2).copied().collect();
    assert_eq!(
        tail,
        [
            SchedEvent::Finished { seq, reason: FinishReason::Stop },
            SchedEvent::Token { seq, token: stop, logprob: None }
        ],
        "and nothing after it"
    );
}

#[test]
fn the_device_stops_at_its_own_stops_under_run_ahead() {
    let mut rig = Rig::new(SchedulerConfig { max_in_flight: 2, ..config() }, 16);
    let stop = alone(&prompt(0, 4), 3)[2];
    let sampling = SamplingRow::new(&SamplingParams::default(), 0, &[stop]);
    let new = NewSequence { stop_tokens: vec![stop], sampling, ..request(prompt(0, 4), 20) };
    let seq = rig.accept(new);
    rig.drain();
    assert_eq!(rig.tokens(seq), alone(&prompt(0, 4), 3));
    assert_eq!(rig.reason(seq), Some(FinishReason::Stop));
}

#[test]
fn the_context_ends_a_sequence_by_length_and_the_request_stays_as_given() {
    // Defect (g): the caller's max_tokens and parameters were overwritten.
    let mut rig = Rig::new(SchedulerConfig { max_model_len: 32, ..config() }, 16);
    let params = SamplingParams { temperature: 0.7, top_k: 5, ..SamplingParams::default() };
    let sampling = SamplingRow::new(&params, 1, &[]);
    let seq = rig.accept(NewSequence { sampling, ..request(prompt(0, 20), u32::MAX) });
    rig.schedule();
    assert_eq!(rig.plan.new_slots[0].sampling, sampling);
    assert_eq!(rig.plan.new_slots[0].position_limit, 32);
    rig.commit();
    rig.drain();
    assert_eq!(rig.tokens(seq).len(), 12);
    assert_eq!(rig.reason(seq), Some(FinishReason::Length));
}

#[test]
fn bad_logits_end_the_sequence_and_clear_what_it_cached() {
    let mut rig = Rig::new(config(), 16);
    let (good, bad) = (rig.add(prompt(100, 33), 2), rig.add(prompt(0, 20), 9));
    rig.step();
    assert_eq!(rig.scheduler.stats().blocks_cached, 3);
    rig.schedule();
    let mut result = rig.commit_as(|tokens| {
        let row = tokens.iter_mut().find(|sampled| sampled.seq == bad).unwrap();
        row.token = Err(SampleFault::NotFinite);
    });
    result.clear();
    assert_eq!(rig.reason(bad), Some(FinishReason::Error));
    assert_eq!(rig.reason(good), Some(FinishReason::Length));
    assert_eq!(rig.scheduler.stats().blocks_cached, 2, "the neighbour's blocks stay");
    assert_eq!(rig.scheduler.stats().blocks_free, 16);
    let again = rig.add(prompt(0, 20), 1);
    rig.drain();
    assert_eq!(rig.cached(again), [0]);
}

#[test]
fn a_missing_token_is_an_error_and_not_a_hang() {
    let mut rig = Rig::new(config(), 16);
    let seq = rig.add(prompt(0, 20), 9);
    rig.schedule();
    rig.commit_as(Vec::clear);
    assert_eq!(rig.reason(seq), Some(FinishReason::Error));
    assert!(!rig.scheduler.has_work());
}

#[test]
fn the_host_ends_a_sequence_in_any_state() {
    let mut rig = Rig::new(SchedulerConfig { max_in_flight: 2, max_num_batched_tokens: 16, ..config() }, 16);
    let ids: Vec<_> = (0..4).map(|index| rig.add(prompt(index * 100, 20), 9)).collect();
    rig.scheduler.finish(ids[3]);
    rig.schedule();
    rig.scheduler.finish(ids[0]);
    rig.schedule();
    rig.schedule();
    rig.commit();
    rig.scheduler.finish(ids[1]);
    rig.scheduler.finish(ids[1]);
    rig.scheduler.finish(SeqId(77));
    let events = rig.events.len();
    rig.drain();
    assert_eq!(rig.tokens(ids[2]), alone(&prompt(200, 20), 9));
    assert!(rig.events[events..].iter().all(|event| !matches!(event, SchedEvent::Token { seq, .. } if *seq != ids[2])));
    assert_eq!(rig.scheduler.stats().blocks_free, 16);
}

#[test]
fn after_a_device_loss_everything_runs_again_in_order_with_the_same_tokens() {
    let mut rig = Rig::new(SchedulerConfig { max_in_flight: 2, max_num_seqs: 2, ..config() }, 16);
    let ids: Vec<_> = (0..3).map(|index| rig.add(prompt(index * 100, 20), 9)).collect();
    rig.schedule();
    rig.schedule();
    rig.commit();
    rig.schedule();
    rig.scheduler.requeue_all(&mut rig.events);
    rig.scheduler.check();
    assert_eq!(rig.waiting(), ids);
    assert_eq!(rig.scheduler.in_flight(), 0);
    assert_eq!((rig.scheduler.stats().blocks_free, rig.scheduler.stats().blocks_cached), (16, 0));
    // A result that surfaces late is ignored.
    let stale = StepResult { epoch: rig.plan.epoch, ..StepResult::default() };
    rig.scheduler.commit(&stale, &mut rig.events);
    let mut options = MockOptions::default();
    options.capacity.block_count = 16;
    rig.runner = MockRunner::new(options);
    rig.drain();
    for (index, id) in ids.iter().enumerate() {
        assert_eq!(rig.tokens(*id), alone(&prompt(index as u32 * 100, 20), 9));
    }
}

#[test]
fn steady_decoding_reuses_its_memory() {
    let mut rig = Rig::new(SchedulerConfig { max_in_flight: 2, ..config() }, 64);
    for index in 0..4 {
        rig.add(prompt(index * 50, 20), 200);
    }
    for _ in 0..4 {
        rig.schedule();
        rig.schedule();
        rig.commit();
    }
    let sizes = |rig: &Rig| {
        let sequences = rig.scheduler.running.iter().map(|urgency| &rig.scheduler.sequences[&urgency.seq]);
        let lists: Vec<_> = sequences.map(|s| (s.tokens.as_ptr(), s.table.as_ptr(), s.hashes.as_ptr())).collect();
        (lists, rig.plan.decode.as_ptr(), rig.plan.table_updates.capacity(), rig.scheduler.spare_rows.capacity())
    };
    let before = sizes(&rig);
    for _ in 0..40 {
        rig.schedule();
        rig.events.clear();
        rig.commit();
    }
    rig.schedule();
    assert_eq!(sizes(&rig), before);
}

#[test]
fn a_submission_with_bad_logits_caches_nothing_of_its_sequence() {
    let mut rig = Rig::new(config(), 16);
    rig.add(prompt(0, 20), 9);
    rig.schedule();
    rig.commit_as(|tokens| tokens[0].token = Err(SampleFault::NotFinite));
    assert_eq!(rig.scheduler.stats().blocks_cached, 0);
}

#[test]
fn a_holder_does_not_bring_back_what_was_withdrawn() {
    let mut rig = Rig::new(config(), 16);
    let bad = rig.add(prompt(0, 20), 9);
    rig.step();
    let holder = rig.add(prompt(0, 20), 30);
    rig.schedule();
    assert_eq!(rig.cached(holder), [16]);
    rig.commit_as(|tokens| {
        tokens.iter_mut().filter(|row| row.seq == bad).for_each(|row| row.token = Err(SampleFault::NotFinite))
    });
    (0..20).for_each(|_| drop(rig.step()));
    let late = rig.add(prompt(0, 20), 1);
    rig.drain();
    assert_eq!(rig.cached(late), [0]);
}
