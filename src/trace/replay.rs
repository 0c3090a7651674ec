//! Makes the recorded calls again, on a fresh scheduler and without waiting, and compares every plan.

use super::call::Recorded;
use super::{CALL, TraceReader};
use crate::base::{Epoch, SeqId};
use crate::error::{Error, Result};
use crate::runner::{Costs, StepResult};
use crate::sched::plan::StepPlan;
use crate::sched::{SchedEvent, Scheduler};
use std::collections::VecDeque;
use std::time::Duration;

/// More blocks than any device has; a header that asks for more is not ours.
const MAX_BLOCKS: u32 = 1 << 28;
/// The same for slots.
const MAX_SLOTS: u32 = 1 << 20;

/// What was replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Calls made.
    pub calls: u64,
    /// Plans compared.
    pub plans: u64,
    /// Steps in them.
    pub steps: u64,
    /// Sequences added.
    pub sequences: u64,
    /// Tokens that results brought.
    pub tokens: u64,
    /// Times that a sequence gave way.
    pub preemptions: u64,
    /// Time from the first call to the last.
    pub span: Duration,
    /// The file stopped in the middle; what it holds was replayed.
    pub truncated: bool,
}

/// The first thing that came out differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Calls made before.
    pub calls: u64,
    /// Plans that were the same before.
    pub plans: u64,
    /// When the call was made.
    pub at: Duration,
    /// What the trace holds.
    pub recorded: String,
    /// What the scheduler says now.
    pub replayed: String,
}

/// How a replay ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// Every plan was the same.
    Same(Summary),
    /// One was not.
    Differs(Difference),
}

/// Replays a trace.
///
/// # Errors
/// The file is damaged, or holds what no scheduler could have been told.
pub fn replay(reader: &mut TraceReader) -> Result<Replayed> {
    let mut again = Again::new(reader)?;
    while let Some(event) = reader.next()? {
        if event.cat != CALL {
            continue;
        }
        let at = event.at();
        let call: Recorded =
            serde_json::from_value(event.args).map_err(|error| reader.broken(format!("not a call: {error}")))?;
        let start = *again.start.get_or_insert(at);
        again.summary.span = at.saturating_sub(start);
        if let Err((recorded, replayed)) = again.call(&call).map_err(|error| reader.broken(error))? {
            let Summary { calls, plans, .. } = again.summary;
            return Ok(Replayed::Differs(Difference { calls, plans, at, recorded, replayed }));
        }
        again.summary.calls += 1;
    }
    let truncated = reader.is_truncated();
    Ok(Replayed::Same(Summary { truncated, ..again.summary }))
}

/// Recorded and replayed, as texts.
type Pair = (String, String);

const NOTHING: &str = "nothing to submit";

struct Again {
    scheduler: Scheduler,
    plan: StepPlan,
    events: Vec<SchedEvent>,
    flights: VecDeque<Flight>,
    start: Option<Duration>,
    summary: Summary,
}

/// A submission whose result is still to come, and the most tokens that each of its sequences can get.
struct Flight {
    epoch: Epoch,
    rows: Vec<(SeqId, u32)>,
}

impl Flight {
    fn of(plan: &StepPlan) -> Self {
        let chunks = plan.prefill.iter().map(|chunk| (chunk.seq, u32::from(chunk.last)));
        let decode = plan.decode.iter().map(|row| (row.seq, u32::from(plan.steps)));
        Self { epoch: plan.epoch, rows: chunks.chain(decode).collect() }
    }

    /// Whether a runner can give this result; the scheduler takes that for granted.
    fn fits(mut self, result: &StepResult) -> bool {
        self.epoch == result.epoch
            && result.tokens.iter().all(|sampled| {
                let row = self.rows.iter_mut().find(|(seq, left)| *seq == sampled.seq && *left > 0);
                row.map(|(_, left)| *left -= 1).is_some()
            })
    }
}

impl Again {
    fn new(reader: &TraceReader) -> Result<Self> {
        let header = reader.header();
        let capacity = header.capacity;
        let limits = [
            ("KV blocks", capacity.block_count, MAX_BLOCKS),
            ("host blocks", capacity.host_blocks, MAX_BLOCKS),
            ("slots", capacity.slot_count, MAX_SLOTS),
        ];
        for (what, value, limit) in limits {
            if value > limit {
                return Err(Error::load(format!(
                    "{} speaks of {value} {what}; at most {limit} are possible",
                    reader.name()
                )));
            }
        }
        let scheduler = Scheduler::new(header.config.clone(), capacity)
            .map_err(|error| Error::load(format!("{} has a header that is refused: {error}", reader.name())))?;
        let (plan, events) = (StepPlan::default(), Vec::new());
        Ok(Self { scheduler, plan, events, flights: VecDeque::new(), start: None, summary: Summary::default() })
    }

    /// Makes a call; the inner error is a difference.
    fn call(&mut self, call: &Recorded) -> Result<std::result::Result<(), Pair>> {
        let Self { scheduler, plan, events, flights, summary, .. } = self;
        match call {
            Recorded::Add(added) => {
                let seq = scheduler.add(added.new_sequence(), events)?;
                summary.sequences += 1;
                if seq.0 != added.seq {
                    return Ok(Err((format!("a new sequence is {}", added.seq), format!("it is {seq}"))));
                }
            }
            Recorded::Schedule { plan: recorded, times } => {
                for _ in 0..*times {
                    let replayed = scheduler.schedule(plan, events).then(|| plan.to_string());
                    if replayed != *recorded {
                        let text = |plan: Option<String>| plan.unwrap_or_else(|| NOTHING.into());
                        return Ok(Err((text(recorded.clone()), text(replayed))));
                    }
                }
                if recorded.is_some() {
                    flights.push_back(Flight::of(plan));
                    summary.plans += 1;
                    summary.steps += u64::from(plan.steps);
                }
            }
            Recorded::Commit(recorded) => {
                let result = recorded.step_result();
                if !flights.pop_front().is_some_and(|flight| flight.fits(&result)) {
                    return Err(Error::load(format!("result {} does not answer the plan before it", result.epoch)));
                }
                scheduler.commit(&result, events);
                summary.tokens += recorded.token_count() as u64;
            }
            Recorded::Finish { seq } => scheduler.finish(SeqId(*seq)),
            Recorded::Release { seq } => scheduler.release(SeqId(*seq)),
            Recorded::Ready { seq } => scheduler.set_ready(SeqId(*seq)),
            Recorded::Append { seq, tokens } => scheduler.append(SeqId(*seq), tokens, events),
            Recorded::StepLimit { steps } => scheduler.set_step_limit(*steps),
            Recorded::PromptLimit { tokens } => scheduler.set_prompt_limit(*tokens),
            Recorded::Costs { prefill_micros_per_token, move_micros_per_block } => scheduler.set_costs(Costs {
                prefill_micros_per_token: *prefill_micros_per_token,
                move_micros_per_block: *move_micros_per_block,
            }),
            Recorded::Pause { pause } => scheduler.set_pause(*pause),
            Recorded::Reset { preempt } => scheduler.reset_prefix_cache(*preempt, events)?,
            Recorded::Requeue => {
                flights.clear();
                scheduler.requeue_all(events);
            }
        }
        let preempted = events.iter().filter(|event| matches!(event, SchedEvent::Preempted { .. })).count();
        summary.preemptions += preempted as u64;
        events.clear();
        Ok(Ok(()))
    }
}
