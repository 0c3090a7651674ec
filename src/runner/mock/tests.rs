//! The mock must notice what a wrong schedule does, or the tests that stand on it prove nothing.

use super::*;
use crate::base::{BlockId, HostBlockId, SeqId, SlotId};
use crate::sampling::SamplingParams;
use crate::sched::plan::{BlockCopy, BlockLoad, BlockSave, DecodeRow, PrefillChunk, SlotInit, TableUpdate};

fn greedy(stops: &[TokenId]) -> SamplingRow {
    SamplingRow::new(&SamplingParams::default(), 0, stops)
}

/// Opens slot `id` for sequence `id` on `blocks` and prefills `tokens`.
fn open(plan: &mut StepPlan, id: u32, blocks: &[u32], tokens: &[TokenId], limit: u32) {
    let (slot, seq) = (SlotId(id), SeqId(u64::from(id)));
    plan.new_slots.push(SlotInit {
        slot,
        seq,
        sampling: greedy(&[]),
        lists: None,
        prompt_len: 0,
        history_len: 0,
        position_limit: limit,
    });
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

/// With memory on the host and, perhaps, a window.
fn roomy(window: Option<u32>) -> MockOptions {
    let capacity = Capacity { host_blocks: 4, window, ..MockOptions::default().capacity };
    MockOptions { capacity, ..MockOptions::default() }
}

fn set_entry(plan: &mut StepPlan, id: u32, index: u32, block: u32) {
    plan.table_updates.push(TableUpdate { slot: SlotId(id), index, block: BlockId(block) });
}

fn bug(runner: &mut MockRunner, plan: &StepPlan) -> String {
    match runner.submit(plan) {
        Err(RunError::Bug(what)) => what,
        other => panic!("{plan}: {other:?}"),
    }
}

#[test]
fn cells_move_with_their_blocks_and_moving_takes_time() {
    let options = roomy(None);
    let prompt: Vec<TokenId> = (0..20).collect();
    let expected = options.continuation(&prompt, &greedy(&[]), &[], 24);
    let mut runner = MockRunner::new(options);
    let mut plan = first();
    open(&mut plan, 0, &[5, 6], &prompt, 24);
    runner.submit(&plan).unwrap();
    // Both blocks leave, and another sequence takes them, in one plan.
    let mut swap = StepPlan { epoch: Epoch(2), ..first() };
    for (block, host) in [(5, 3), (6, 0)] {
        swap.saves.push(BlockSave { block: BlockId(block), host: HostBlockId(host) });
    }
    swap.closed_slots.push(SlotId(0));
    open(&mut swap, 1, &[6, 5], &[9; 20], 24);
    runner.submit(&swap).unwrap();
    let mut result = StepResult::default();
    assert!(runner.poll(Wait::AtMost(Duration::MAX), &mut result).unwrap());
    let first_token = result.tokens[0].token.unwrap();
    let back = |epoch| {
        let mut plan = StepPlan { epoch: Epoch(epoch), ..first() };
        for (host, block) in [(3, 8), (0, 7)] {
            plan.loads.push(BlockLoad { host: HostBlockId(host), block: BlockId(block) });
        }
        open(&mut plan, 0, &[8, 7], &[first_token], 24);
        plan.prefill[0].start = 20;
        plan
    };
    assert!(bug(&mut runner, &back(3)).contains("before the end of submission 2"));
    assert!(runner.poll(Wait::AtMost(Duration::MAX), &mut result).unwrap());
    // 20 prompt tokens at 10, a step at 1000, two blocks at 20.
    assert_eq!(result.micros, 1240);
    runner.submit(&back(4)).unwrap();
    runner.submit(&decode(5, 2, 0, 21)).unwrap();
    let tokens: Vec<TokenId> = [vec![first_token], drain(&mut runner)].concat();
    assert_eq!(tokens, expected);
    assert_eq!(runner.costs(), Costs { prefill_micros_per_token: 10.0, move_micros_per_block: 20.0 });
}

#[test]
fn an_entry_is_replaced_by_a_copy_or_not_at_all() {
    let start = || {
        let mut runner = MockRunner::new(roomy(None));
        let mut plan = first();
        open(&mut plan, 0, &[5, 6], &[1; 18], 24);
        open(&mut plan, 1, &[7, 8], &[2; 18], 24);
        runner.submit(&plan).unwrap();
        runner
    };
    let copied = |source: u32, target: u32| {
        let mut plan = decode(2, 1, 0, 18);
        plan.copies.push(BlockCopy { source: BlockId(source), target: BlockId(target) });
        set_entry(&mut plan, 0, 1, target);
        plan
    };
    start().submit(&copied(6, 9)).unwrap();
    let what = bug(&mut start(), &copied(8, 9));
    assert!(what.contains("changes from block 6 to 9, which differs at position 16"), "{what}");
    let mut twice = copied(6, 9);
    set_entry(&mut twice, 0, 1, 9);
    assert!(bug(&mut start(), &twice).contains("set twice"));
    // A copy under somebody's feet is found out by the next read.
    let mut stray = decode(2, 1, 0, 18);
    stray.copies.push(BlockCopy { source: BlockId(7), target: BlockId(5) });
    assert!(bug(&mut start(), &stray).contains("in another context"));
}

#[test]
fn with_a_window_what_lies_before_may_go_and_what_lies_within_may_not() {
    // The row at position 35 sees positions 16 to 35.
    let options = roomy(Some(20));
    let prompt: Vec<TokenId> = (0..35).collect();
    let expected = options.continuation(&prompt, &greedy(&[]), &[], 40);
    let start = || {
        let mut runner = MockRunner::new(options.clone());
        let mut plan = first();
        open(&mut plan, 0, &[5, 6, 7], &prompt, 40);
        runner.submit(&plan).unwrap();
        runner
    };
    let beside = |block: u32| {
        let mut plan = decode(2, 1, 0, 35);
        plan.closed_slots.push(SlotId(1));
        open(&mut plan, 1, &[block], &[9, 9], 20);
        plan
    };
    // The first block is given away, and its entry led astray.
    let mut runner = start();
    let mut plan = beside(5);
    set_entry(&mut plan, 0, 0, 60);
    runner.submit(&plan).unwrap();
    runner.submit(&decode(3, 3, 0, 36)).unwrap();
    let mut tokens = drain(&mut runner);
    // Chunks are sampled first: the second token is the stranger's.
    tokens.remove(1);
    assert_eq!(tokens, expected);
    assert!(bug(&mut start(), &beside(6)).contains("reads KV at 16"));
    let mut astray = decode(2, 1, 0, 35);
    set_entry(&mut astray, 0, 1, 60);
    assert!(bug(&mut start(), &astray).contains("differs at position 16"));
    // A chunk's first row, at 24, sees the most: from 5 on.
    let chunked = |overwritten: usize| {
        let mut runner = MockRunner::new(options.clone());
        let mut plan = first();
        open(&mut plan, 0, &[5, 6, 7], &prompt[..24], 40);
        plan.prefill[0].last = false;
        runner.submit(&plan).unwrap();
        let mut plan = StepPlan { epoch: Epoch(2), ..first() };
        chunk(&mut plan, 0, 24, &prompt[24..], true);
        open(&mut plan, 1, &[5], &[9; 16][..overwritten], 20);
        runner.submit(&plan)
    };
    assert!(chunked(5).is_ok() && chunked(6).is_err());
}
