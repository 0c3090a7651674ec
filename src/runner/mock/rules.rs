//! What a request's rules do to the mock's token: the next one upwards that they let through. Biases of -100 and lower forbid a
//! token; other biases and the penalties change nothing, since the mock has no logits, but the history that they need is checked.

use super::Context;
use crate::base::TokenId;
use crate::runner::{SampleFault, StepResult, TokenLogprob, TopRange, TopToken};
use crate::sampling::lists::{fill_mask, mask_words};
use crate::sampling::row::{ALL_LOGPROBS, NO_LOGPROBS};
use crate::sampling::{SamplingLists, SamplingRow};
use std::sync::Arc;

/// A request in its slot.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub sampling: SamplingRow,
    lists: Option<Arc<SamplingLists>>,
    prompt_len: usize,
    vocab_size: u32,
    mask: Option<Vec<u32>>,
    /// By position; as far as it is known.
    history: Vec<Option<TokenId>>,
}

impl Rules {
    pub fn new(
        sampling: SamplingRow,
        lists: Option<Arc<SamplingLists>>,
        prompt_len: usize,
        history: &[TokenId],
        vocab_size: u32,
    ) -> Self {
        let mask = lists.as_ref().and_then(|lists| lists.allowed.as_ref()).map(|allowed| {
            let mut mask = vec![0; mask_words(vocab_size as usize)];
            fill_mask(&mut mask, allowed);
            mask
        });
        let history = history.iter().copied().map(Some).collect();
        Self { sampling, lists, prompt_len, vocab_size, mask, history }
    }

    /// Takes note of the token at `position`.
    pub fn write(&mut self, position: usize, token: TokenId) {
        if self.sampling.keeps_history() {
            self.history.resize(self.history.len().max(position + 1), None);
            self.history[position] = Some(token);
        }
    }

    /// The next token is guided by `mask`.
    ///
    /// # Errors
    /// It is no mask of this vocabulary.
    pub fn set_mask(&mut self, mask: &[u32]) -> Result<(), String> {
        let words = mask_words(self.vocab_size as usize);
        if mask.len() != words {
            return Err(format!("a mask of {} words, but {words} are needed", mask.len()));
        }
        self.mask = Some(mask.to_vec());
        Ok(())
    }

    /// What becomes of `token` after `known` tokens whose hash is `context`; `start` is that of none.
    ///
    /// # Errors
    /// The plans left something out, or told a wrong token.
    pub fn apply(
        &mut self,
        token: TokenId,
        known: usize,
        context: Context,
        start: Context,
    ) -> Result<Result<TokenId, SampleFault>, String> {
        let mut history = Vec::new();
        if self.sampling.keeps_history() {
            let told: Option<Vec<TokenId>> = self.history.get(..known).and_then(|all| all.iter().copied().collect());
            history = told.ok_or("keeps its history, but nobody told all of it")?;
            if history.iter().fold(start, |context, token| context.then(*token)) != context {
                return Err("keeps a history that is not what it computed".into());
            }
        }
        if self.sampling.is_guided() && self.mask.is_none() {
            return Err("is guided, but there is no mask for its next token".into());
        }
        let output = history.get(self.prompt_len..).unwrap_or_default();
        let output_len = known - self.prompt_len.min(known);
        let lists = self.lists.as_deref();
        let found =
            first_allowed(token, self.vocab_size, &self.sampling, lists, self.mask.as_deref(), output, output_len);
        if self.sampling.is_guided() {
            self.mask = None;
        }
        Ok(found.ok_or(SampleFault::NothingAllowed))
    }
}

/// The first token from `token` upwards, and then from 0, that may follow `output_len` outputs; the last of them are `output`.
pub(super) fn first_allowed(
    token: TokenId,
    vocab_size: u32,
    sampling: &SamplingRow,
    lists: Option<&SamplingLists>,
    mask: Option<&[u32]>,
    output: &[TokenId],
    output_len: usize,
) -> Option<TokenId> {
    let none = SamplingLists::default();
    let lists = lists.unwrap_or(&none);
    let early = output_len < sampling.min_tokens as usize;
    let bad = |token: TokenId, word: &Vec<TokenId>| {
        word.split_last().is_some_and(|(last, before)| *last == token && output.ends_with(before))
    };
    let allowed = |token: &TokenId| {
        *token < sampling.token_limit
            && mask.is_none_or(|mask| mask[*token as usize / 32] >> (token % 32) & 1 == 1)
            && !(early && lists.early_stops.contains(token))
            && !lists.bad_words.iter().any(|word| bad(*token, word))
            && !lists.bias.iter().any(|(biased, bias)| biased == token && *bias <= -100.0)
    };
    (token..vocab_size).chain(0..token.min(vocab_size)).find(allowed)
}

/// What a request that `wants` log-probabilities is told about `token`: it is the likeliest, and those after it follow.
pub(super) fn report(
    token: TokenId,
    logprob: f64,
    wants: u32,
    vocab_size: u32,
    result: &mut StepResult,
) -> Option<TokenLogprob> {
    if wants == NO_LOGPROBS {
        return None;
    }
    let count = if wants == ALL_LOGPROBS { vocab_size } else { (wants - 1).min(vocab_size) };
    let first = result.top.len() as u32;
    result.top.extend(
        (0..count).map(|rank| TopToken { token: (token + rank) % vocab_size, logprob: logprob as f32 - rank as f32 }),
    );
    Some(TokenLogprob { logprob, rank: 1, top: TopRange { first, count } })
}

#[cfg(test)]
mod tests {
    use super::super::{MockOptions, MockRunner};
    use super::*;
    use crate::base::{BlockId, Epoch, SeqId, SlotId};
    use crate::runner::{ModelRunner, RunError, Wait};
    use crate::sampling::SamplingParams;
    use crate::sched::plan::{DecodeRow, MaskRow, PrefillChunk, SlotInit, StepPlan, TableUpdate};
    use std::time::Duration;

    const PROMPT: [TokenId; 5] = [3, 1, 4, 1, 5];

    /// A plan that opens slot 0 and computes the prompt from `start` on.
    fn open(sampling: SamplingRow, lists: SamplingLists, start: usize, history: &[TokenId]) -> StepPlan {
        let (slot, seq) = (SlotId(0), SeqId(7));
        StepPlan {
            epoch: Epoch(1),
            steps: 1,
            new_slots: vec![SlotInit {
                slot,
                seq,
                sampling,
                lists: Some(Arc::new(lists)),
                prompt_len: PROMPT.len() as u32,
                history_len: history.len() as u32,
                position_limit: 12,
            }],
            history_tokens: history.to_vec(),
            table_updates: vec![TableUpdate { slot, index: 0, block: BlockId(2) }],
            prefill: vec![PrefillChunk {
                seq,
                slot,
                start: start as u32,
                len: (PROMPT.len() - start) as u32,
                last: true,
                score: false,
                next_token: None,
            }],
            prefill_tokens: PROMPT[start..].to_vec(),
            ..StepPlan::default()
        }
    }

    fn decode(epoch: u64, steps: u16, position: u32) -> StepPlan {
        let decode = vec![DecodeRow { seq: SeqId(7), slot: SlotId(0), position }];
        StepPlan { epoch: Epoch(epoch), steps, decode, ..StepPlan::default() }
    }

    fn results(runner: &mut MockRunner) -> (Vec<Result<TokenId, SampleFault>>, StepResult) {
        let (mut tokens, mut result) = (Vec::new(), StepResult::default());
        while runner.poll(Wait::AtMost(Duration::MAX), &mut result).unwrap() {
            tokens.extend(result.tokens.iter().map(|sampled| sampled.token));
        }
        (tokens, result)
    }

    fn bug(runner: &mut MockRunner, plan: &StepPlan) -> String {
        match runner.submit(plan) {
            Err(RunError::Bug(what)) => what,
            other => panic!("{plan}: {other:?}"),
        }
    }

    #[test]
    fn lists_hold_on_the_device_as_in_the_oracle() {
        let options = MockOptions::default();
        let row = |params: &SamplingParams| SamplingRow::new(params, 0, &[]);
        let free = options.continuation(&PROMPT, &row(&SamplingParams::default()), &[], 12);
        let lists = SamplingLists {
            bias: vec![(free[0], -100.0)],
            bad_words: vec![vec![free[0] + 1], vec![free[0] + 2, 17]],
            early_stops: vec![17, 18],
            allowed: Some((0..999).collect()),
        };
        let params = SamplingParams { min_tokens: 4, presence_penalty: 0.5, ..Default::default() };
        let sampling = SamplingRow { token_limit: 900, ..row(&params).with_lists(&lists) };
        let expected = options.continuation_with(&PROMPT, &sampling, &lists, &[], 12, &mut |_| None);
        assert_eq!(expected[0], free[0] + 2, "the bias and a bad word drop two");
        assert!(expected.iter().all(|token| *token < 900));
        let mut runner = MockRunner::new(options);
        runner.submit(&open(sampling, lists, 0, &[])).unwrap();
        runner.submit(&decode(2, 6, 5)).unwrap();
        assert_eq!(results(&mut runner).0, expected.iter().map(|token| Ok(*token)).collect::<Vec<_>>());
    }

    #[test]
    fn guided_tokens_need_their_masks() {
        let options = MockOptions::default();
        let params = SamplingParams { constraint: Some(crate::sampling::Constraint::JsonObject), ..Default::default() };
        let sampling = SamplingRow::new(&params, 0, &[]);
        let guided = |mut plan: StepPlan, tokens: &[TokenId]| {
            plan.masks = vec![MaskRow { seq: SeqId(7), slot: SlotId(0) }];
            plan.mask_words = vec![0; mask_words(1000)];
            fill_mask(&mut plan.mask_words, tokens);
            plan
        };
        let first = open(sampling, SamplingLists::default(), 0, &[]);
        let mut runner = MockRunner::new(options.clone());
        assert!(bug(&mut runner, &first).contains("no mask"));
        let mut runner = MockRunner::new(options);
        runner.submit(&guided(first, &[31, 32])).unwrap();
        runner.submit(&guided(decode(2, 1, 5), &[999])).unwrap();
        let mut stale = MockRunner::new(MockOptions::default());
        stale.submit(&guided(open(sampling, SamplingLists::default(), 0, &[]), &[31])).unwrap();
        assert!(bug(&mut stale, &decode(2, 1, 5)).contains("no mask"), "a mask serves one token");
        runner.submit(&guided(decode(3, 1, 6), &[])).unwrap();
        let (tokens, _) = results(&mut runner);
        assert!(tokens[0] == Ok(31) || tokens[0] == Ok(32));
        assert_eq!(tokens[1..], [Ok(999), Err(SampleFault::NothingAllowed)]);
    }

    #[test]
    fn histories_are_held_against_what_was_computed() {
        let sampling = SamplingRow::new(&SamplingParams { repetition_penalty: 1.1, ..Default::default() }, 0, &[]);
        let plan = |start, history: &[TokenId]| open(sampling, SamplingLists::default(), start, history);
        let prefilled = || {
            let mut runner = MockRunner::new(MockOptions::default());
            let plain = SamplingRow::new(&SamplingParams::default(), 0, &[]);
            runner.submit(&open(plain, SamplingLists::default(), 0, &[])).unwrap();
            runner
        };
        let again = |start, history: &[TokenId]| StepPlan { epoch: Epoch(2), ..plan(start, history) };
        prefilled().submit(&again(3, &PROMPT[..3])).unwrap();
        assert!(bug(&mut prefilled(), &again(3, &[])).contains("nobody told all of it"));
        assert!(bug(&mut prefilled(), &again(3, &[3, 1, 9])).contains("not what it computed"));
    }

    #[test]
    fn log_probabilities_come_with_their_tokens() {
        use crate::sampling::TopLogprobs;
        let params = SamplingParams { logprobs: Some(TopLogprobs::Most(3)), ..Default::default() };
        let sampling = SamplingRow::new(&params, 0, &[]);
        let mut options = MockOptions::default();
        let mut runner = MockRunner::new(options.clone());
        runner.submit(&open(sampling, SamplingLists::default(), 0, &[])).unwrap();
        let mut result = StepResult::default();
        assert!(runner.poll(Wait::AtMost(Duration::MAX), &mut result).unwrap());
        let told = result.tokens[0].logprob.unwrap();
        let top = told.top.of(&result);
        assert_eq!((told.rank, top.len(), top[0].token), (1, 3, result.tokens[0].token.unwrap()));
        options.capacity.logprob_entries = 2;
        assert!(
            bug(&mut MockRunner::new(options), &open(sampling, SamplingLists::default(), 0, &[])).contains("no room")
        );
    }
}
