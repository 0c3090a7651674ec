//! The mock must notice what a wrong schedule does, or the tests that stand on it prove nothing.

use super::*;
use crate::base::{BlockId, SeqId, SlotId};
use crate::sampling::SamplingParams;
use crate::sched::plan::{DecodeRow, PrefillChunk, SlotInit, TableUpdate};

fn greedy(stops: &[TokenId]) -> SamplingRow {
    SamplingRow::new(&SamplingParams::default(), 0, stops)
}

/// Opens slot `id` for sequence `id` on `blocks` and prefills `tokens`.
fn open(plan: &mut StepPlan, id: u32, blocks: &[u32], tokens: &[TokenId], limit: u32) {
    let (slot, seq) = (SlotId(id), SeqId(u64::from(id)));
    plan.new_slots.push(SlotInit { slot, seq, sampling: greedy(&[]), position_limit: limit });
    let table = blocks.iter().enumerate();
    plan.table_updates.extend(table.map(|(at, block)| TableUpdate { slot, index: at as u32, block: BlockId(*block) }));
    chunk(plan, id, 0, tokens, true);
}

fn chunk(plan: &mut StepPlan, id: u32, start: u32, tokens: &[TokenId], last: bool) {
    let (slot, seq, len) = (SlotId(id), SeqId(u64::from(id)), tokens.len() as u32);
    plan.prefill.push(PrefillChunk { seq, slot, start, len, last, score: false, next_token: None });
    plan.prefill_tokens.extend_from_slice(tokens);
}

fn decode(epoch: u64, steps: u16, id: u32, position: u32) -> StepPlan {
    let row = DecodeRow { seq: SeqId(u64::from(id)), slot: SlotId(id), position };
    StepPlan { epoch: Epoch(epoch), steps, decode: vec![row], ..StepPlan::default() }
}

fn first() -> StepPlan {
    StepPlan { epoch: Epoch(1), steps: 1, ..StepPlan::default() }
}

/// Why the last of `plans` is refused; the others must pass.
fn refusal(plans: &[StepPlan]) -> String {
    let mut runner = MockRunner::new(MockOptions::default());
    let (last, before) = plans.split_last().unwrap();
    before.iter().for_each(|plan| runner.submit(plan).unwrap());
    match runner.submit(last) {
        Err(RunError::Bug(what)) => what,
        other => panic!("{last}: {other:?}"),
    }
}

fn drain(runner: &mut MockRunner) -> Vec<TokenId> {
    let mut result = StepResult::default();
    let mut tokens = Vec::new();
    while runner.poll(Wait::AtMost(Duration::MAX), &mut result).unwrap() {
        tokens.extend(result.tokens.iter().map(|sampled| sampled.token.unwrap()));
    }
    tokens
}

#[test]
fn a_block_of_two_sequences_is_found_out() {
    let mut plan = first();
    open(&mut plan, 0, &[5], &[1, 2, 3], 9);
    open(&mut plan, 1, &[5], &[1, 2, 4], 9);
    assert!(refusal(&[plan]).contains("another sequence"));
    // Equal content is what sharing means.
    let mut plan = first();
    open(&mut plan, 0, &[5], &[1, 2, 3], 9);
    open(&mut plan, 1, &[5], &[1, 2, 3], 9);
    MockRunner::new(MockOptions::default()).submit(&plan).unwrap();
}

#[test]
fn kv_that_was_never_written_or_lies_elsewhere_is_found_out() {
    let mut hole = first();
    open(&mut hole, 0, &[5, 6], &[1, 2], 30);
    hole.prefill[0].start = 16;
    assert!(refusal(&[hole]).contains("never written"));
    let mut beyond = first();
    open(&mut beyond, 0, &[5], &[1; 16], 30);
    assert!(refusal(&[beyond, decode(2, 1, 0, 16)]).contains("no block for position 16"));
}

#[test]
fn wrong_positions_owners_and_limits_are_found_out() {
    let mut plan = first();
    open(&mut plan, 0, &[5], &[1, 2], 4);
    let opened = || plan.clone();
    assert!(refusal(&[opened(), decode(2, 1, 0, 3)]).contains("decodes at 3"));
    assert!(refusal(&[opened(), decode(2, 1, 0, 2), decode(3, 1, 0, 3)]).contains("beyond its limit"));
    assert!(refusal(&[opened(), decode(2, 1, 1, 2)]).contains("closed"));
    let mut stranger = decode(2, 1, 0, 2);
    stranger.decode[0].seq = SeqId(7);
    assert!(refusal(&[opened(), stranger]).contains("belongs to sequence 0, not 7"));
    let mut closed = decode(2, 1, 0, 2);
    closed.closed_slots.push(SlotId(0));
    assert!(refusal(&[opened(), closed]).contains("closed"));
    let mut mixed = decode(2, 2, 0, 2);
    chunk(&mut mixed, 1, 0, &[1], true);
    assert!(refusal(&[opened(), mixed]).contains("2 steps with 1 chunks"));
    assert!(refusal(&[opened(), decode(1, 1, 0, 2)]).contains("comes after"));
}

#[test]
fn chunks_steps_and_blocks_do_not_change_tokens() {
    let options = MockOptions::default();
    let prompt: Vec<TokenId> = (0..20).collect();
    let expected = options.continuation(&prompt, &greedy(&[]), &[], 26);
    let mut whole = first();
    open(&mut whole, 0, &[0, 1], &prompt, 26);
    let mut runner = MockRunner::new(options.clone());
    runner.submit(&whole).unwrap();
    runner.submit(&decode(2, 5, 0, 20)).unwrap();
    assert_eq!(drain(&mut runner), expected);
    let mut start = first();
    open(&mut start, 0, &[9, 4], &prompt[..7], 26);
    start.prefill[0].last = false;
    let mut end = StepPlan { epoch: Epoch(2), ..first() };
    chunk(&mut end, 0, 7, &prompt[7..], true);
    let mut runner = MockRunner::new(options);
    [start, end].iter().for_each(|plan| runner.submit(plan).unwrap());
    (0..5).for_each(|at| runner.submit(&decode(u64::from(at) + 3, 1, 0, at + 20)).unwrap());
    assert_eq!(drain(&mut runner), expected);
}

#[test]
fn every_token_and_the_seed_of_a_draw_count() {
    let options = MockOptions::default();
    let output = |prompt: &[TokenId], row: &SamplingRow| options.continuation(prompt, row, &[], 12);
    assert_ne!(output(&[1, 2, 3], &greedy(&[])), output(&[2, 1, 3], &greedy(&[])));
    let draw = |seed| SamplingRow::new(&SamplingParams { temperature: 1.0, ..Default::default() }, seed, &[]);
    assert_ne!(output(&[1, 2, 3], &draw(1)), output(&[1, 2, 3], &draw(2)));
    assert_ne!(output(&[1, 2, 3], &draw(1)), output(&[1, 2, 3], &draw(1 + (1 << 32))));
}

#[test]
fn results_come_when_virtual_time_allows() {
    let mut plan = first();
    open(&mut plan, 0, &[0], &[1, 2], 9);
    let mut runner = MockRunner::new(MockOptions::default());
    let mut result = StepResult::default();
    runner.submit(&plan).unwrap();
    // Two prompt tokens at 10, a step at 1000, 100 of latency.
    assert!(!runner.poll(Wait::No, &mut result).unwrap());
    assert!(!runner.poll(Wait::AtMost(Duration::from_micros(1119)), &mut result).unwrap());
    assert_eq!(runner.now_micros(), 1119);
    runner.advance(1);
    assert!(runner.poll(Wait::No, &mut result).unwrap());
    assert_eq!((result.epoch, result.micros, result.tokens.len()), (Epoch(1), 1020, 1));
    assert!(!runner.poll(Wait::AtMost(Duration::MAX), &mut result).unwrap(), "nothing is under way");
}

#[test]
fn a_lost_device_stays_lost() {
    for fault in [Fault::LostAtSubmit(Epoch(1)), Fault::LostAtPoll(Epoch(1))] {
        let mut plan = first();
        open(&mut plan, 0, &[0], &[1, 2], 9);
        let mut runner = MockRunner::new(MockOptions { fault: Some(fault), ..MockOptions::default() });
        let mut result = StepResult::default();
        let submitted = runner.submit(&plan);
        assert_eq!(submitted.is_ok(), matches!(fault, Fault::LostAtPoll(_)));
        for _ in 0..2 {
            let polled = runner.poll(Wait::AtMost(Duration::MAX), &mut result);
            assert!(matches!(polled, Err(RunError::DeviceLost(_))), "{polled:?}");
        }
    }
}
