//! A call of the scheduler as data: borrowed while it is made, owned once it is read back.

use crate::base::{Epoch, RequestId, SeqId, SlotId, TokenId};
use crate::runner::{Costs, SampleFault, SampledToken, StepResult, TokenScore, TopRange};
use crate::sampling::{MAX_DEVICE_STOPS, SamplingLists, SamplingRow};
use crate::sched::plan::StepPlan;
use crate::sched::{NewSequence, Pause};
use serde::{Deserialize, Serialize};

/// A call that changed a [`Scheduler`](crate::sched::Scheduler). Calls that it refused changed nothing and are none.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    /// `add` accepted a sequence.
    Add {
        /// As it was handed in.
        new: &'a NewSequence,
        /// What it is called.
        seq: SeqId,
    },
    /// `schedule` made this plan, or none.
    Schedule {
        /// The plan, if it returned true.
        plan: Option<&'a StepPlan>,
    },
    /// `commit` took a result.
    Commit {
        /// The result.
        result: &'a StepResult,
    },
    /// `finish` ended a sequence.
    Finish {
        /// Which.
        seq: SeqId,
    },
    /// `release` let a held sequence go.
    Release {
        /// Which.
        seq: SeqId,
    },
    /// `set_ready`: the mask for its next token is there.
    Ready {
        /// Which.
        seq: SeqId,
    },
    /// `append` took tokens that needed no sampling.
    Append {
        /// Which.
        seq: SeqId,
        /// The tokens.
        tokens: &'a [TokenId],
    },
    /// `set_step_limit`.
    StepLimit(u16),
    /// `set_prompt_limit`.
    PromptLimit(u32),
    /// `set_costs`.
    Costs(Costs),
    /// `set_pause`; `Pause::None` resumes.
    Pause(Pause),
    /// `reset_prefix_cache` succeeded.
    Reset {
        /// Whether running sequences were preempted for it.
        preempt: bool,
    },
    /// `requeue_all`: the device was lost.
    Requeue,
}

/// A call as it stands in the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub(super) enum Recorded {
    Add(Box<Added>),
    /// A plan as text, or how many calls in a row planned nothing.
    Schedule {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<String>,
        #[serde(default = "once", skip_serializing_if = "is_once")]
        times: u64,
    },
    Commit(Committed),
    Finish {
        seq: u64,
    },
    Release {
        seq: u64,
    },
    Ready {
        seq: u64,
    },
    Append {
        seq: u64,
        tokens: Vec<TokenId>,
    },
    StepLimit {
        steps: u16,
    },
    PromptLimit {
        tokens: u32,
    },
    Costs {
        prefill_micros_per_token: f32,
        move_micros_per_block: f32,
    },
    Pause {
        pause: Pause,
    },
    Reset {
        preempt: bool,
    },
    Requeue,
}

fn once() -> u64 {
    1
}

fn is_once(times: &u64) -> bool {
    *times == 1
}

impl Recorded {
    pub fn of(call: Call<'_>) -> Self {
        match call {
            Call::Add { new, seq } => Self::Add(Box::new(Added::of(new, seq))),
            Call::Schedule { plan } => Self::Schedule { plan: plan.map(ToString::to_string), times: 1 },
            Call::Commit { result } => Self::Commit(Committed::of(result)),
            Call::Finish { seq } => Self::Finish { seq: seq.0 },
            Call::Release { seq } => Self::Release { seq: seq.0 },
            Call::Ready { seq } => Self::Ready { seq: seq.0 },
            Call::Append { seq, tokens } => Self::Append { seq: seq.0, tokens: tokens.to_vec() },
            Call::StepLimit(steps) => Self::StepLimit { steps },
            Call::PromptLimit(tokens) => Self::PromptLimit { tokens },
            Call::Costs(Costs { prefill_micros_per_token, move_micros_per_block }) => {
                Self::Costs { prefill_micros_per_token, move_micros_per_block }
            }
            Call::Pause(pause) => Self::Pause { pause },
            Call::Reset { preempt } => Self::Reset { preempt },
            Call::Requeue => Self::Requeue,
        }
    }

    /// What viewers show.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Add(_) => "add",
            Self::Schedule { .. } => "schedule",
            Self::Commit(_) => "commit",
            Self::Finish { .. } => "finish",
            Self::Release { .. } => "release",
            Self::Ready { .. } => "ready",
            Self::Append { .. } => "append",
            Self::StepLimit { .. } => "step limit",
            Self::PromptLimit { .. } => "prompt limit",
            Self::Costs { .. } => "costs",
            Self::Pause { .. } => "pause",
            Self::Reset { .. } => "reset",
            Self::Requeue => "requeue",
        }
    }
}

/// A [`NewSequence`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Added {
    pub seq: u64,
    request: u64,
    prompt: Vec<TokenId>,
    max_tokens: u32,
    sampling: Sampling,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lists: Option<SamplingLists>,
    stop_tokens: Vec<TokenId>,
    cache_salt: Option<String>,
    score: bool,
    arrival_micros: u64,
    priority: i32,
    deadline_micros: Option<u64>,
    fork_of: Option<u64>,
    held: bool,
}

impl Added {
    fn of(new: &NewSequence, seq: SeqId) -> Self {
        // Named one by one, so that a field that comes later cannot be forgotten here.
        let NewSequence {
            request,
            prompt,
            max_tokens,
            sampling,
            lists,
            stop_tokens,
            cache_salt,
            score,
            arrival_micros,
            priority,
            deadline_micros,
            fork_of,
            held,
        } = new;
        Self {
            seq: seq.0,
            request: request.0,
            prompt: prompt.clone(),
            max_tokens: *max_tokens,
            sampling: Sampling::of(sampling),
            lists: lists.as_deref().cloned(),
            stop_tokens: stop_tokens.clone(),
            cache_salt: cache_salt.clone(),
            score: *score,
            arrival_micros: *arrival_micros,
            priority: *priority,
            deadline_micros: *deadline_micros,
            fork_of: fork_of.map(|seq| seq.0),
            held: *held,
        }
    }

    pub fn new_sequence(&self) -> NewSequence {
        NewSequence {
            request: RequestId(self.request),
            prompt: self.prompt.clone(),
            max_tokens: self.max_tokens,
            sampling: self.sampling.row(),
            lists: self.lists.clone().map(Into::into),
            stop_tokens: self.stop_tokens.clone(),
            cache_salt: self.cache_salt.clone(),
            score: self.score,
            arrival_micros: self.arrival_micros,
            priority: self.priority,
            deadline_micros: self.deadline_micros,
            fork_of: self.fork_of.map(SeqId),
            held: self.held,
        }
    }
}

/// A [`SamplingRow`]. The scheduler only carries it; it is here so that the workload can be run on a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Sampling {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    seed: u64,
    stops: Vec<TokenId>,
    #[serde(default)]
    flags: u32,
    #[serde(default = "one")]
    repetition_penalty: f32,
    #[serde(default)]
    presence_penalty: f32,
    #[serde(default)]
    frequency_penalty: f32,
    #[serde(default)]
    min_tokens: u32,
    #[serde(default = "all")]
    token_limit: u32,
    #[serde(default)]
    logprobs: u32,
    #[serde(default)]
    prompt_logprobs: u32,
}

fn one() -> f32 {
    1.0
}

fn all() -> u32 {
    u32::MAX
}

impl Sampling {
    fn of(row: &SamplingRow) -> Self {
        // Named one by one, so that a field that comes later cannot be forgotten here.
        let SamplingRow {
            temperature,
            top_k,
            top_p,
            min_p,
            seed_low: _,
            seed_high: _,
            stop_count,
            flags,
            stops,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            min_tokens,
            token_limit,
            logprobs,
            prompt_logprobs,
            reserved: _,
        } = *row;
        Self {
            flags,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            min_tokens,
            token_limit,
            logprobs,
            prompt_logprobs,
            temperature,
            top_k,
            top_p,
            min_p,
            seed: row.seed(),
            stops: stops.into_iter().take(stop_count as usize).collect(),
        }
    }

    fn row(&self) -> SamplingRow {
        let stop_count = self.stops.len().min(MAX_DEVICE_STOPS);
        let mut stops = [0; MAX_DEVICE_STOPS];
        stops[..stop_count].copy_from_slice(&self.stops[..stop_count]);
        SamplingRow {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed_low: self.seed as u32,
            seed_high: (self.seed >> 32) as u32,
            stop_count: stop_count as u32,
            flags: self.flags,
            stops,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            min_tokens: self.min_tokens,
            token_limit: self.token_limit,
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            reserved: 0,
        }
    }
}

/// A [`StepResult`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Committed {
    epoch: u64,
    micros: u32,
    /// Sequence, slot, token. What was reported of log-probabilities decides nothing and is left out.
    tokens: Vec<(u64, u32, Sampled)>,
    /// Sequence, position, log-probability; null stands for what is not finite.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    scores: Vec<(u64, u32, Option<f64>)>,
}

/// A token, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Sampled {
    Token(TokenId),
    Fault(SampleFault),
}

impl Committed {
    fn of(result: &StepResult) -> Self {
        let StepResult { epoch, tokens, scores, top: _, micros } = result;
        let sampled = |token: &Result<TokenId, SampleFault>| match token {
            Ok(token) => Sampled::Token(*token),
            Err(fault) => Sampled::Fault(*fault),
        };
        Self {
            epoch: epoch.0,
            micros: *micros,
            tokens: tokens.iter().map(|row| (row.seq.0, row.slot.0, sampled(&row.token))).collect(),
            scores: scores
                .iter()
                .map(|TokenScore { seq, position, logprob, .. }| {
                    (seq.0, *position, Some(*logprob).filter(|logprob| logprob.is_finite()))
                })
                .collect(),
        }
    }

    pub fn token_count(&self) -> usize {
        self.tokens.len()
    }

    pub fn step_result(&self) -> StepResult {
        StepResult {
            epoch: Epoch(self.epoch),
            tokens: self
                .tokens
                .iter()
                .map(|(seq, slot, sampled)| SampledToken {
                    seq: SeqId(*seq),
                    slot: SlotId(*slot),
                    token: match *sampled {
                        Sampled::Token(token) => Ok(token),
                        Sampled::Fault(fault) => Err(fault),
                    },
                    logprob: None,
                })
                .collect(),
            scores: self
                .scores
                .iter()
                .map(|(seq, position, logprob)| TokenScore {
                    seq: SeqId(*seq),
                    position: *position,
                    logprob: logprob.unwrap_or(f64::NAN),
                    rank: 0,
                    top: TopRange::default(),
                })
                .collect(),
            top: Vec::new(),
            micros: self.micros,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::SamplingParams;

    fn through_json(recorded: &Recorded) -> Recorded {
        serde_json::from_str(&serde_json::to_string(recorded).unwrap()).unwrap()
    }

    #[test]
    fn a_sequence_comes_back_as_it_was() {
        let params = SamplingParams { temperature: 0.1 + 0.2, top_k: 7, min_p: 1e-7, ..Default::default() };
        let new = NewSequence {
            stop_tokens: vec![3, 4, 5],
            cache_salt: Some("salt \"and\" pepper\n".into()),
            score: true,
            arrival_micros: u64::MAX,
            priority: -3,
            deadline_micros: Some(17),
            fork_of: Some(SeqId(2)),
            held: true,
            ..NewSequence::new(RequestId(9), vec![1, 2, u32::MAX], 5, SamplingRow::new(&params, u64::MAX - 1, &[3, 4]))
        };
        let recorded = Recorded::of(Call::Add { new: &new, seq: SeqId(4) });
        let Recorded::Add(back) = through_json(&recorded) else { panic!("{recorded:?}") };
        assert_eq!(back.seq, 4);
        assert_eq!(format!("{:?}", back.new_sequence()), format!("{new:?}"));
    }

    #[test]
    fn a_result_comes_back_as_it_was() {
        let result = StepResult {
            epoch: Epoch(7),
            tokens: vec![
                SampledToken { seq: SeqId(1), slot: SlotId(0), token: Ok(5), logprob: None },
                SampledToken { seq: SeqId(2), slot: SlotId(1), token: Err(SampleFault::NotFinite), logprob: None },
                SampledToken { seq: SeqId(3), slot: SlotId(2), token: Err(SampleFault::NothingAllowed), logprob: None },
            ],
            scores: vec![TokenScore { seq: SeqId(1), position: 3, logprob: -0.1, rank: 0, top: TopRange::default() }],
            top: Vec::new(),
            micros: 12,
        };
        let recorded = Recorded::of(Call::Commit { result: &result });
        let Recorded::Commit(back) = through_json(&recorded) else { panic!("{recorded:?}") };
        assert_eq!(back.step_result(), result);
        assert_eq!(back.token_count(), 3);
    }

    #[test]
    fn small_calls_come_back_as_they_were() {
        let costs = Costs { prefill_micros_per_token: 0.1, move_micros_per_block: 3e-9 };
        let calls = [
            Call::Schedule { plan: None },
            Call::Schedule { plan: Some(&StepPlan::default()) },
            Call::Finish { seq: SeqId(3) },
            Call::Release { seq: SeqId(4) },
            Call::Ready { seq: SeqId(6) },
            Call::Append { seq: SeqId(7), tokens: &[1, 2] },
            Call::StepLimit(5),
            Call::PromptLimit(u32::MAX),
            Call::Costs(costs),
            Call::Pause(Pause::New),
            Call::Reset { preempt: true },
            Call::Requeue,
        ];
        for call in calls {
            let recorded = Recorded::of(call);
            assert_eq!(through_json(&recorded), recorded);
        }
    }
}
