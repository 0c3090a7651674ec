//! KV blocks on the move, plan by plan and without a scheduler: whatever is saved, overwritten, loaded elsewhere or copied
//! while a sequence lives, it gets the tokens that it gets when nothing moves. Every scenario runs on the device with both
//! types of KV, on the f64 reference, and on the mock.

#[path = "common/golden.rs"]
mod golden;

use octavo::base::{BlockId, Epoch, HostBlockId, SeqId, SlotId, TokenId};
use octavo::config::{EngineConfig, EngineOptions, KvDtype};
use octavo::model::files::ModelFiles;
use octavo::reference::{ReferenceOptions, ReferenceRunner};
use octavo::runner::mock::{MockOptions, MockRunner};
use octavo::runner::wgpu::WgpuRunner;
use octavo::runner::{Capacity, Costs, ModelRunner, RunError, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::{BlockCopy, BlockLoad, BlockSave, DecodeRow, PrefillChunk, SlotInit, StepPlan, TableUpdate};
use std::ops::Range;
use std::time::Duration;

const BLOCKS: u32 = 48;
const HOST_BLOCKS: u32 = 20;
/// Tokens that each scenario compares.
const OUTPUT: usize = 16;

/// A sequence, driven by hand.
struct Driven {
    id: SeqId,
    slot: SlotId,
    /// Known so far.
    tokens: Vec<TokenId>,
    /// Positions whose KV is planned.
    computed: usize,
}

/// What outlives a scenario.
#[derive(Default)]
struct Past {
    epoch: Epoch,
    /// Prompts, and what they are followed by when nothing moves.
    known: Vec<(Vec<TokenId>, Vec<TokenId>)>,
}

/// Writes plans and reads results.
struct Hand<'r> {
    runner: &'r mut dyn ModelRunner,
    past: &'r mut Past,
    plan: StepPlan,
    in_flight: usize,
    sequences: Vec<Driven>,
}

impl<'r> Hand<'r> {
    fn new(runner: &'r mut dyn ModelRunner, past: &'r mut Past) -> Self {
        let plan = StepPlan { steps: 1, ..StepPlan::default() };
        Self { runner, past, plan, in_flight: 0, sequences: Vec::new() }
    }

    /// Opens `slot` for a new sequence on `blocks`, with KV for all of `tokens` but the last ones from `cached` on; these
    /// are computed. Returns the sequence's number.
    fn open(&mut self, slot: u32, blocks: &[u32], tokens: &[TokenId], cached: usize) -> usize {
        let (id, slot) = (SeqId(self.past.epoch.0 * 100 + u64::from(slot)), SlotId(slot));
        let sampling = SamplingRow::new(&SamplingParams::default(), 0, &[]);
        self.plan.new_slots.push(SlotInit {
            slot,
            seq: id,
            sampling,
            lists: None,
            prompt_len: 0,
            history_len: 0,
            position_limit: 200,
        });
        let table = (0..).zip(blocks).map(|(index, block)| TableUpdate { slot, index, block: BlockId(*block) });
        self.plan.table_updates.extend(table);
        let (start, len) = (cached as u32, (tokens.len() - cached) as u32);
        let chunk = PrefillChunk { seq: id, slot, start, len, last: true, score: false, next_token: None };
        self.plan.prefill.push(chunk);
        self.plan.prefill_tokens.extend(&tokens[cached..]);
        self.sequences.push(Driven { id, slot, tokens: tokens.to_vec(), computed: tokens.len() });
        self.sequences.len() - 1
    }

    /// Lets a sequence decode in this plan, `steps` times.
    fn decode(&mut self, number: usize, steps: u16) {
        let sequence = &mut self.sequences[number];
        self.plan.steps = steps;
        let row = DecodeRow { seq: sequence.id, slot: sequence.slot, position: sequence.computed as u32 };
        self.plan.decode.push(row);
        sequence.computed += usize::from(steps);
    }

    fn close(&mut self, number: usize) {
        self.plan.closed_slots.push(self.sequences[number].slot);
    }

    fn save(&mut self, blocks: &[u32], hosts: &[u32]) {
        let pairs = blocks.iter().zip(hosts);
        self.plan
            .saves
            .extend(pairs.map(|(&block, &host)| BlockSave { block: BlockId(block), host: HostBlockId(host) }));
    }

    fn load(&mut self, hosts: &[u32], blocks: &[u32]) {
        let pairs = hosts.iter().zip(blocks);
        self.plan
            .loads
            .extend(pairs.map(|(&host, &block)| BlockLoad { host: HostBlockId(host), block: BlockId(block) }));
    }

    fn copy(&mut self, source: u32, target: u32) {
        self.plan.copies.push(BlockCopy { source: BlockId(source), target: BlockId(target) });
    }

    fn set_entry(&mut self, number: usize, index: u32, block: u32) {
        let slot = self.sequences[number].slot;
        self.plan.table_updates.push(TableUpdate { slot, index, block: BlockId(block) });
    }

    fn try_submit(&mut self) -> Result<(), RunError> {
        self.past.epoch = self.past.epoch.next();
        self.plan.epoch = self.past.epoch;
        let outcome = self.runner.submit(&self.plan);
        self.plan.clear();
        outcome
    }

    fn submit(&mut self) {
        self.try_submit().unwrap_or_else(|error| panic!("{error}"));
        self.in_flight += 1;
    }

    /// Waits for the oldest submission.
    fn land(&mut self) {
        let mut result = StepResult::default();
        let landed = self.runner.poll(Wait::AtMost(Duration::from_secs(60)), &mut result);
        assert!(landed.unwrap_or_else(|error| panic!("{error}")));
        self.in_flight -= 1;
        for sampled in result.tokens {
            let sequence = self.sequences.iter_mut().find(|sequence| sequence.id == sampled.seq).expect("one of ours");
            sequence.tokens.push(sampled.token.expect("finite logits"));
        }
    }

    /// Runs the plan and everything before it.
    fn go(&mut self) {
        self.submit();
        while self.in_flight > 0 {
            self.land();
        }
    }

    /// Decodes, four steps at a time and two submissions ahead, until a sequence has `OUTPUT` tokens after `prompt`.
    fn finish(&mut self, number: usize, prompt: usize) -> Vec<TokenId> {
        while self.sequences[number].computed + 1 < prompt + OUTPUT {
            let left = prompt + OUTPUT - 1 - self.sequences[number].computed;
            self.decode(number, left.min(4) as u16);
            self.submit();
            if self.in_flight == 2 {
                self.land();
            }
        }
        while self.in_flight > 0 {
            self.land();
        }
        self.sequences[number].tokens[prompt..].to_vec()
    }

    /// What a prompt is followed by when nothing moves.
    fn undisturbed(&mut self, prompt: &[TokenId]) -> Vec<TokenId> {
        if let Some((_, tokens)) = self.past.known.iter().find(|(known, _)| known == prompt) {
            return tokens.clone();
        }
        let blocks: Vec<u32> = (30..39).collect();
        let number = self.open(3, &blocks, prompt, 0);
        self.go();
        let tokens = self.finish(number, prompt.len());
        self.close(number);
        self.past.known.push((prompt.to_vec(), tokens.clone()));
        tokens
    }
}

fn numbers(range: Range<u32>) -> Vec<u32> {
    range.collect()
}

/// A sequence goes to the host while another one takes its blocks in the same plan, and comes back to other blocks.
fn out_and_back(hand: &mut Hand<'_>, prompts: &[Vec<TokenId>]) {
    let [prompt, other, ..] = prompts else { unreachable!() };
    let expected = [hand.undisturbed(prompt), hand.undisturbed(other)];
    let first = hand.open(0, &numbers(0..8), prompt, 0);
    hand.go();
    hand.decode(first, 4);
    hand.go();
    // 104 positions: six full blocks and half of another. Neighbours on the device, strangers on the host.
    hand.save(&numbers(0..7), &[9, 2, 8, 3, 7, 4, 6]);
    hand.close(first);
    let second = hand.open(1, &[3, 5, 4, 0, 2, 1, 7, 6], other, 0);
    hand.go();
    hand.decode(second, 1);
    hand.go();
    let tokens = hand.sequences[first].tokens.clone();
    hand.load(&[9, 2, 8, 3, 7, 4, 6], &[20, 9, 22, 23, 24, 11, 10]);
    let back = hand.open(0, &[20, 9, 22, 23, 24, 11, 10, 12], &tokens, tokens.len() - 1);
    hand.decode(second, 1);
    hand.go();
    assert_eq!(hand.finish(back, prompt.len()), expected[0], "loaded into other blocks");
    assert_eq!(hand.finish(second, other.len()), expected[1], "in the blocks that were saved");
    hand.close(back);
    hand.close(second);
}

/// As above with two submissions in flight all the time: nothing is waited for but what must be.
fn out_and_back_ahead(hand: &mut Hand<'_>, prompts: &[Vec<TokenId>]) {
    let [prompt, other, third, ..] = prompts else { unreachable!() };
    let expected = [hand.undisturbed(prompt), hand.undisturbed(other), hand.undisturbed(third)];
    let first = hand.open(0, &numbers(0..8), prompt, 0);
    let second = hand.open(1, &numbers(8..16), other, 0);
    hand.go();
    hand.decode(first, 2);
    hand.decode(second, 2);
    hand.submit();
    // The block that the submission under way writes is saved right behind it.
    hand.save(&numbers(0..7), &numbers(0..7));
    hand.close(first);
    hand.open(2, &numbers(0..8), third, 0);
    hand.submit();
    hand.land();
    // The second one goes while the first one's saves are under way, and its places on the host come back in between.
    hand.save(&numbers(8..15), &numbers(7..14));
    hand.close(second);
    let third_again = hand.open(0, &numbers(8..16), third, 0);
    hand.submit();
    hand.land();
    let tokens = hand.sequences[first].tokens.clone();
    hand.load(&numbers(0..7), &numbers(16..23));
    let back = hand.open(1, &numbers(16..24), &tokens, tokens.len() - 1);
    hand.submit();
    hand.land();
    hand.decode(back, 1);
    hand.submit();
    hand.land();
    let tokens = hand.sequences[second].tokens.clone();
    // Loaded blocks are saved at once to places whose old content just left.
    hand.save(&numbers(16..20), &numbers(0..4));
    hand.load(&numbers(7..14), &numbers(24..31));
    let back_too = hand.open(3, &numbers(24..32), &tokens, tokens.len() - 1);
    hand.submit();
    hand.land();
    assert_eq!(hand.finish(back, prompt.len()), expected[0]);
    assert_eq!(hand.finish(back_too, other.len()), expected[1]);
    assert_eq!(hand.finish(third_again, third.len()), expected[2]);
    for slot in 0..4 {
        hand.plan.closed_slots.push(SlotId(slot));
    }
}

/// Three sequences on one prompt's blocks: its partial last block is copied before each of them writes, twice to a new slot
/// and once under a slot that runs.
fn copy_on_write(hand: &mut Hand<'_>, prompts: &[Vec<TokenId>]) {
    let prompt = &prompts[0];
    let fork = |token: TokenId| [prompt.as_slice(), &[token]].concat();
    let forks = [fork(5), fork(6)];
    let expected = [hand.undisturbed(prompt), hand.undisturbed(&forks[0]), hand.undisturbed(&forks[1])];
    let root = hand.open(0, &numbers(0..7), prompt, 0);
    hand.go();
    hand.copy(6, 10);
    hand.copy(6, 11);
    hand.copy(6, 13);
    hand.set_entry(root, 6, 13);
    hand.set_entry(root, 7, 14);
    let left = hand.open(1, &[0, 1, 2, 3, 4, 5, 11, 16], &forks[0], prompt.len());
    let right = hand.open(2, &[0, 1, 2, 3, 4, 5, 10, 17], &forks[1], prompt.len());
    hand.decode(root, 1);
    hand.go();
    assert_eq!(hand.finish(root, prompt.len()), expected[0], "the root");
    assert_eq!(hand.finish(left, prompt.len() + 1), expected[1], "the left fork");
    assert_eq!(hand.finish(right, prompt.len() + 1), expected[2], "the right fork");
    // Block 6 is overwritten, loaded and copied: save, load and copy act in this order.
    hand.close(left);
    hand.close(right);
    hand.save(&[6], &[0]);
    let other = hand.open(2, &[6, 41, 42, 43, 44, 45, 46], &prompts[1], 0);
    hand.go();
    hand.close(other);
    hand.save(&[6, 13], &[1, 2]);
    hand.load(&[0], &[6]);
    hand.copy(6, 21);
    let again = hand.open(1, &[0, 1, 2, 3, 4, 5, 21, 22], &forks[1], prompt.len());
    hand.go();
    assert_eq!(hand.finish(again, prompt.len() + 1), expected[2], "a copy of what was loaded");
    hand.close(again);
    hand.load(&[1], &[40]);
    let other = hand.open(3, &[40, 41, 42, 43, 44, 45, 46, 47], &prompts[1], prompts[1].len() - 1);
    hand.go();
    let expected = hand.finish(other, prompts[1].len());
    hand.close(other);
    assert_eq!(hand.undisturbed(&prompts[1]), expected, "what was saved just before it was overwritten");
    for slot in 0..3 {
        hand.plan.closed_slots.push(SlotId(slot));
    }
}

/// Two submissions in flight save to the same place of the host, the later one in more rounds than the staging holds: the
/// later content stays.
fn the_later_save_wins(hand: &mut Hand<'_>, prompts: &[Vec<TokenId>]) {
    let [prompt, other, ..] = prompts else { unreachable!() };
    let expected = hand.undisturbed(other);
    let first = hand.open(0, &numbers(0..8), prompt, 0);
    let second = hand.open(1, &numbers(8..16), other, 0);
    hand.go();
    hand.save(&numbers(0..7), &numbers(0..7));
    hand.decode(first, 1);
    hand.submit();
    // The other way round, so that what is last of the first is among the first of the second.
    let hosts = [6, 5, 4, 3, 2, 1, 0];
    hand.save(&numbers(8..15), &hosts);
    hand.decode(first, 1);
    hand.submit();
    hand.land();
    hand.land();
    let tokens = hand.sequences[second].tokens.clone();
    hand.load(&hosts, &numbers(16..23));
    let back = hand.open(2, &numbers(16..24), &tokens, tokens.len() - 1);
    hand.go();
    assert_eq!(hand.finish(back, other.len()), expected);
    for slot in 0..3 {
        hand.plan.closed_slots.push(SlotId(slot));
    }
}

/// Loading what is not there is refused, and changes nothing.
fn refusals(hand: &mut Hand<'_>, prompts: &[Vec<TokenId>]) {
    let mut refusal = |prepare: &dyn Fn(&mut Hand<'_>)| {
        prepare(hand);
        hand.open(0, &numbers(0..8), &prompts[0], 0);
        match hand.try_submit() {
            Err(RunError::Bug(what)) => what,
            other => panic!("{other:?}"),
        }
    };
    assert!(refusal(&|hand| hand.load(&[19], &[0])).contains("host block 19 is loaded, but was never saved"));
    assert!(refusal(&|hand| hand.load(&[HOST_BLOCKS], &[0])).contains("host block 20 of 20"));
    assert!(refusal(&|hand| hand.save(&[BLOCKS], &[0])).contains("block 48 of 48"));
    assert!(refusal(&|hand| hand.copy(1, 1)).contains("copied and copied to"));
}

type Scenario = fn(&mut Hand<'_>, &[Vec<TokenId>]);

/// All of it, on one runner.
fn scenarios(runner: &mut dyn ModelRunner, past: &mut Past, prompts: &[Vec<TokenId>]) {
    assert_eq!(runner.capacity().host_blocks, HOST_BLOCKS);
    let all: [Scenario; 4] = [out_and_back, out_and_back_ahead, copy_on_write, the_later_save_wins];
    for scenario in all {
        let mut hand = Hand::new(runner, past);
        scenario(&mut hand, prompts);
        // What closes the slots needs something to compute.
        hand.open(0, &[0], &[1], 0);
        hand.go();
    }
}

/// Prompts of 100 tokens: the longest recorded one, and itself turned around and rotated.
fn prompts() -> (Vec<Vec<TokenId>>, Vec<TokenId>) {
    let file = golden::json("tiny-llama/golden.json");
    let recorded = file["prompts"].as_array().unwrap().iter();
    let longest = recorded.max_by_key(|prompt| golden::ids(&prompt["ids"]).len()).unwrap();
    let prompt = golden::ids(&longest["ids"]);
    assert_eq!(prompt.len(), 100);
    let reversed = prompt.iter().rev().copied().collect();
    let rotated = [&prompt[37..], &prompt[..37]].concat();
    (vec![prompt, reversed, rotated], golden::ids(&longest["greedy_ids"]))
}

fn device(model: &str, kv_dtype: KvDtype, swap_space: u64) -> WgpuRunner {
    let files = ModelFiles::open(&golden::path(model)).unwrap();
    let options = EngineOptions {
        max_num_seqs: 4,
        max_num_batched_tokens: 320,
        max_model_len: Some(256),
        num_kv_blocks: Some(BLOCKS as usize),
        steps_per_submit: 4,
        kv_dtype,
        swap_space,
        ..EngineOptions::default()
    };
    let config = EngineConfig::new(options, &files.spec).unwrap();
    WgpuRunner::load(&files, &config, &mut |_| {}).unwrap()
}

fn block_bytes(model: &str, kv_dtype: KvDtype) -> u64 {
    let spec = ModelFiles::open(&golden::path(model)).unwrap().spec;
    octavo::config::kv_bytes_per_token(&spec, kv_dtype) * 16
}

/// With room on the host for twenty blocks, and a little more that is not enough for another.
fn with_host_blocks(model: &str, kv_dtype: KvDtype) -> WgpuRunner {
    device(model, kv_dtype, HOST_BLOCKS as u64 * block_bytes(model, kv_dtype) + 100)
}

/// Codes and scales of a block move together.
#[test]
fn moves_of_eight_bit_blocks_change_no_token() {
    let mut runner = with_host_blocks("tiny-qwen3", KvDtype::Q8_0);
    let (prompts, mut past) = (prompts().0, Past::default());
    for window in [20, 3] {
        runner.limit_move_window(window);
        scenarios(&mut runner, &mut past, &prompts);
    }
}

#[test]
fn moves_on_the_device_change_no_token() {
    let (prompts, expected) = prompts();
    // With room in the staging for everything, for three blocks, and for one.
    for (kv_dtype, windows) in [(KvDtype::F16, &[20, 3, 1][..]), (KvDtype::F32, &[3])] {
        let mut runner = with_host_blocks("tiny-llama", kv_dtype);
        let mut past = Past::default();
        assert_eq!(Hand::new(&mut runner, &mut past).undisturbed(&prompts[0]), expected[..OUTPUT]);
        let warm = runner.counters().buffers;
        for window in windows {
            runner.limit_move_window(*window);
            scenarios(&mut runner, &mut past, &prompts);
        }
        assert_eq!(runner.counters().buffers, warm, "moves create no buffers");
        let Costs { prefill_micros_per_token, move_micros_per_block } = runner.costs();
        assert!(prefill_micros_per_token > 0.0 && move_micros_per_block > 0.0);
        refusals(&mut Hand::new(&mut runner, &mut past), &prompts);
    }
}

#[test]
fn moves_in_the_reference_change_no_token() {
    let (prompts, expected) = prompts();
    let files = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    let options = ReferenceOptions {
        block_count: BLOCKS,
        slot_count: 4,
        max_batched_tokens: 320,
        max_model_len: 256,
        max_steps: 4,
    };
    let mut runner = ReferenceRunner::new(&files, options).unwrap().with_host_blocks(HOST_BLOCKS);
    let mut past = Past::default();
    assert_eq!(Hand::new(&mut runner, &mut past).undisturbed(&prompts[0]), expected[..OUTPUT]);
    scenarios(&mut runner, &mut past, &prompts);
    refusals(&mut Hand::new(&mut runner, &mut past), &prompts);
}

#[test]
fn moves_in_the_mock_change_no_token() {
    let (prompts, _) = prompts();
    let capacity = Capacity {
        block_count: BLOCKS,
        slot_count: 4,
        max_batched_tokens: 320,
        max_steps: 4,
        host_blocks: HOST_BLOCKS,
        ..MockOptions::default().capacity
    };
    let options = MockOptions { capacity, ..MockOptions::default() };
    let sampling = SamplingRow::new(&SamplingParams::default(), 0, &[]);
    let expected = options.continuation(&prompts[0], &sampling, &[], prompts[0].len() + OUTPUT);
    let mut runner = MockRunner::new(options);
    let mut past = Past::default();
    assert_eq!(Hand::new(&mut runner, &mut past).undisturbed(&prompts[0]), expected);
    scenarios(&mut runner, &mut past, &prompts);
    refusals(&mut Hand::new(&mut runner, &mut past), &prompts);
}

#[test]
fn without_swap_space_there_is_no_host_memory_and_no_cost() {
    let runner = device("tiny-llama", KvDtype::F16, 0);
    assert_eq!((runner.capacity().host_blocks, runner.costs()), (0, Costs::default()));
}
