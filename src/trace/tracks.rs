//! What each sequence is doing, as spans on a track of its own.

use super::Track;
use super::sink::Sink;
use crate::base::{RequestId, SeqId};
use crate::sched::plan::StepPlan;
use crate::sched::{PreemptReason, Released, SchedEvent};
use rustc_hash::FxHashMap;
use serde_json::json;
use std::time::Duration;

/// One live sequence.
#[derive(Debug)]
struct Life {
    span: Open,
    /// Rows of submissions made before the last preemption say nothing about now.
    incarnation: u32,
    /// Its KV was dropped: known tokens are computed once more.
    again: bool,
    tokens: u64,
}

/// The span under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    /// It has a slot, and whatever it did last is over.
    Nothing,
    /// No slot yet, or none any more. The name is that of the span.
    Waiting(&'static str),
    /// Tokens come. `tokens` came before it.
    Decode { submissions: u64, steps: u64, tokens: u64 },
}

/// What a submission does for one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    seq: SeqId,
    incarnation: u32,
    /// Position and number of known tokens; `None` for a decode row.
    chunk: Option<(u32, u32)>,
}

/// All live sequences.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    lives: FxHashMap<SeqId, Life>,
}

impl Tracks {
    /// The rows of a plan, to be drawn once its result is there.
    pub fn rows(&self, plan: &StepPlan, rows: &mut Vec<Work>) {
        let incarnation = |seq| self.lives.get(&seq).map_or(0, |life: &Life| life.incarnation);
        rows.extend(plan.prefill.iter().map(|chunk| Work {
            seq: chunk.seq,
            incarnation: incarnation(chunk.seq),
            chunk: Some((chunk.start, chunk.len)),
        }));
        let decode = plan.decode.iter();
        rows.extend(decode.map(|row| Work { seq: row.seq, incarnation: incarnation(row.seq), chunk: None }));
    }

    /// A submission with these rows had the device from `from` to `to`.
    pub fn worked(&mut self, rows: &[Work], steps: u64, from: Duration, to: Duration, sink: &mut Sink) {
        for work in rows {
            let Some(life) = self.lives.get_mut(&work.seq) else { continue };
            if life.incarnation != work.incarnation {
                continue;
            }
            let track = Track::of(work.seq);
            match (work.chunk, &mut life.span) {
                (Some((start, len)), _) => {
                    let name = if life.again { "recompute" } else { "prefill" };
                    sink.span(track, name, from, to, json!({ "start": start, "len": len }));
                }
                (None, Open::Decode { submissions, steps: all, .. }) => {
                    *submissions += 1;
                    *all += steps;
                }
                (None, _) => {
                    life.again = false;
                    life.span = Open::Decode { submissions: 1, steps, tokens: life.tokens };
                    sink.begin(track, "decode", from, json!({}));
                }
            }
        }
    }

    /// The scheduler decided.
    pub fn event(&mut self, at: Duration, event: &SchedEvent, sink: &mut Sink) {
        match event {
            SchedEvent::Admitted { seq, cached_tokens, host_tokens, blocks } => {
                let Some(life) = self.lives.get_mut(seq) else { return };
                close(
                    *seq,
                    life,
                    at,
                    sink,
                    || json!({ "cached_tokens": cached_tokens, "host_tokens": host_tokens, "blocks": blocks }),
                );
            }
            SchedEvent::Preempted { seq, reason, how, tokens, estimates } => {
                let Some(life) = self.lives.get_mut(seq) else { return };
                close(*seq, life, at, sink, || json!({}));
                life.incarnation += 1;
                let reason = match reason {
                    PreemptReason::NoBlock { wanted_by } => format!("sequence {wanted_by} needed a block"),
                    PreemptReason::Reset => "the prefix cache was reset".into(),
                    PreemptReason::DeviceLost => "the device was lost".into(),
                };
                let (name, blocks) = match how {
                    Released::Dropped => ("preempted", 0),
                    Released::Swapped { blocks } => ("swapped out", *blocks),
                };
                life.again = *how == Released::Dropped;
                life.span = Open::Waiting(name);
                let args = json!({
                    "reason": reason,
                    "tokens": tokens,
                    "blocks_moved": blocks,
                    "recompute_micros": estimates.recompute_micros,
                    "swap_micros": estimates.swap_micros,
                });
                sink.begin(Track::of(*seq), name, at, args);
            }
            SchedEvent::Copied { seq, source, target } => {
                sink.instant("", Track::of(*seq), "copy", at, json!({ "from": source.0, "to": target.0 }));
            }
            SchedEvent::Token { seq, .. } => {
                let Some(life) = self.lives.get_mut(seq) else { return };
                life.tokens += 1;
                if life.tokens == 1 {
                    sink.instant("", Track::of(*seq), "first token", at, json!({}));
                }
            }
            SchedEvent::Finished { seq, reason } => self.finished(at, *seq, reason.name(), sink),
            // Known from the call already, or from the plan.
            SchedEvent::Arrived { .. }
            | SchedEvent::Chunk { .. }
            | SchedEvent::Decode { .. }
            | SchedEvent::Score { .. }
            | SchedEvent::Evicted { .. } => {}
        }
    }

    /// The end, in a word.
    pub fn finished(&mut self, at: Duration, seq: SeqId, reason: &str, sink: &mut Sink) {
        let Some(mut life) = self.lives.remove(&seq) else { return };
        close(seq, &mut life, at, sink, || json!({}));
        sink.instant("", Track::of(seq), "finished", at, json!({ "reason": reason, "tokens": life.tokens }));
    }

    /// It was accepted.
    pub fn arrived(&mut self, at: Duration, seq: SeqId, request: RequestId, prompt_tokens: usize, sink: &mut Sink) {
        let (track, waiting) = (Track::of(seq), "waiting");
        sink.describe(track, "thread_name", json!({ "name": format!("request {request}, sequence {seq}") }));
        sink.describe(track, "thread_sort_index", json!({ "sort_index": seq.0 }));
        sink.begin(track, waiting, at, json!({ "request": request.0, "prompt_tokens": prompt_tokens }));
        self.lives.insert(seq, Life { span: Open::Waiting(waiting), incarnation: 0, again: false, tokens: 0 });
    }
}

/// Ends the span under way. What a decode span did is known by now; the rest is the caller's news.
fn close(seq: SeqId, life: &mut Life, at: Duration, sink: &mut Sink, news: impl Fn() -> serde_json::Value) {
    let track = Track::of(seq);
    match std::mem::replace(&mut life.span, Open::Nothing) {
        Open::Nothing => {}
        Open::Waiting(name) => sink.end(track, name, at, news()),
        Open::Decode { submissions, steps, tokens } => {
            let tokens = life.tokens - tokens;
            sink.end(track, "decode", at, json!({ "submissions": submissions, "steps": steps, "tokens": tokens }));
        }
    }
}
