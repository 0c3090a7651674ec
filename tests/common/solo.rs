//! Drives a runner by hand, without a scheduler: one sequence from prompt to end, each plan written here.

// Each test program uses its own part of this file.
#![allow(dead_code)]

use octavo::base::{BLOCK_TOKENS, BlockId, Epoch, SeqId, SlotId, TokenId};
use octavo::runner::{ModelRunner, StepResult, TokenScore, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::{BlockCopy, DecodeRow, PrefillChunk, SlotInit, StepPlan, TableUpdate};
use std::time::Duration;

/// How to run a sequence.
#[derive(Clone, Debug)]
pub struct Solo {
    /// Owner named in the plans.
    pub seq: SeqId,
    /// Its slot.
    pub slot: SlotId,
    /// Physical blocks of its table, in order; as many as prompt and output need.
    pub blocks: Vec<BlockId>,
    /// Copies that the first plan makes.
    pub copies: Vec<BlockCopy>,
    /// Leading tokens of the prompt whose KV is in these blocks already.
    pub cached: usize,
    /// Prompt tokens in one plan.
    pub chunk: usize,
    /// Decode steps in one plan.
    pub steps: u16,
    /// Tokens to generate.
    pub max_tokens: u32,
    /// Sampling.
    pub sampling: SamplingParams,
    /// Seed of the draws.
    pub seed: u64,
    /// Tokens that stop the row.
    pub stops: Vec<TokenId>,
    /// Whether the prompt is scored.
    pub score: bool,
}

/// What came back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// Sampled tokens.
    pub tokens: Vec<Option<TokenId>>,
    /// Scores, ordered by position.
    pub scores: Vec<TokenScore>,
}

impl Output {
    /// The tokens, all of which must be there.
    pub fn ids(&self) -> Vec<TokenId> {
        self.tokens.iter().map(|token| token.expect("finite logits")).collect()
    }
}

impl Solo {
    /// Greedy, in one chunk and single steps, in slot 0 and the blocks from 0.
    pub fn greedy(prompt_len: usize, max_tokens: u32) -> Self {
        Self {
            seq: SeqId(1),
            slot: SlotId(0),
            blocks: (0..(prompt_len + max_tokens as usize).div_ceil(BLOCK_TOKENS) as u32).map(BlockId).collect(),
            copies: Vec::new(),
            cached: 0,
            chunk: prompt_len,
            steps: 1,
            max_tokens,
            sampling: SamplingParams::default(),
            seed: 0,
            stops: Vec::new(),
            score: false,
        }
    }

    /// The plan that opens the slot, without epoch or rows.
    pub fn opening(&self, prompt_len: usize) -> StepPlan {
        StepPlan {
            steps: 1,
            new_slots: vec![SlotInit {
                slot: self.slot,
                seq: self.seq,
                sampling: SamplingRow::new(&self.sampling, self.seed, &self.stops),
                lists: None,
                prompt_len: 0,
                history_len: 0,
                position_limit: prompt_len as u32 + self.max_tokens,
            }],
            table_updates: (0..)
                .zip(&self.blocks)
                .map(|(index, &block)| TableUpdate { slot: self.slot, index, block })
                .collect(),
            copies: self.copies.clone(),
            ..StepPlan::default()
        }
    }

    /// Adds the prompt's chunk that starts at `start` to `plan`.
    pub fn add_chunk(&self, plan: &mut StepPlan, prompt: &[TokenId], start: usize) {
        let end = (start + self.chunk).min(prompt.len());
        plan.prefill.push(PrefillChunk {
            seq: self.seq,
            slot: self.slot,
            start: start as u32,
            len: (end - start) as u32,
            last: end == prompt.len(),
            score: self.score,
            next_token: prompt.get(end).copied(),
        });
        plan.prefill_tokens.extend(&prompt[start..end]);
    }

    /// Runs `prompt` to its end. The slot stays open: the next owner takes it over. Epochs count from `epoch`, which is moved on.
    pub fn run(&self, runner: &mut dyn ModelRunner, epoch: &mut Epoch, prompt: &[TokenId]) -> Output {
        let mut output = Output::default();
        let mut step = |mut plan: StepPlan| {
            plan.epoch = *epoch;
            *epoch = epoch.next();
            let result = submit_and_wait(runner, &plan);
            output.tokens.extend(result.tokens.iter().map(|sampled| {
                assert_eq!((sampled.seq, sampled.slot), (self.seq, self.slot));
                sampled.token.ok()
            }));
            output.scores.extend(result.scores);
            result.tokens.len()
        };
        for start in (self.cached..prompt.len()).step_by(self.chunk) {
            let mut plan = match start == self.cached {
                true => self.opening(prompt.len()),
                false => StepPlan { steps: 1, ..StepPlan::default() },
            };
            self.add_chunk(&mut plan, prompt, start);
            step(plan);
        }
        // The last chunk gave the first token.
        let mut sampled = 1;
        while sampled < self.max_tokens {
            let row = DecodeRow { seq: self.seq, slot: self.slot, position: prompt.len() as u32 + sampled - 1 };
            let tokens = step(StepPlan { steps: self.steps, decode: vec![row], ..StepPlan::default() });
            sampled += tokens as u32;
            if tokens < usize::from(self.steps) {
                break;
            }
        }
        output
    }
}

/// Submits `plan` and waits for its result.
pub fn submit_and_wait(runner: &mut dyn ModelRunner, plan: &StepPlan) -> StepResult {
    runner.submit(plan).unwrap_or_else(|e| panic!("{e}"));
    let mut result = StepResult::default();
    // A software adapter takes seconds for a long chunk.
    let done = runner.poll(Wait::AtMost(Duration::from_secs(60)), &mut result).unwrap_or_else(|e| panic!("{e}"));
    assert!(done, "plan {plan} did not finish");
    assert_eq!(result.epoch, plan.epoch);
    result
}
