//! What the scheduler was told and what it decided, as a file: to look at, to draw, and to run again.
//!
//! Whoever drives a [`Scheduler`](crate::sched::Scheduler) tells a [`Tracer`] of every call and of the events that came of
//! it. The file is in Chrome's trace format (Google, "Trace Event Format"), which <https://ui.perfetto.dev> and
//! `chrome://tracing` open: one track for each sequence, one for the device, counters for KV blocks and queues.
//! [`Timeline`] reads it back for a drawing (`octavo trace render`); [`replay`] makes the calls again and compares
//! every plan (`octavo replay`).
//!
//! # Format 1
//!
//! A JSON array with one event a line, so that a file that a killed process left behind is good up to its last line. The
//! first event is the header, a metadata event that viewers skip: its arguments are `format`, the `version` of octavo,
//! and the `config` and `capacity` of the scheduler. Times are microseconds on the clock of whoever wrote the trace.
//!
//! | process | thread | events |
//! |---|---|---|
//! | 1, device | 1, submissions | a span for each submission, from the end of the one before, or its own beginning, to its result |
//! | 1, device | 2, scheduler | an instant for each call, of category `call`; its arguments are all that a replay needs |
//! | 1, device | | counters `KV blocks`, `host blocks`, `sequences` |
//! | 2, sequences | number of the sequence + 1 | spans `waiting`, `prefill`, `recompute`, `decode`, `preempted`, `swapped out`; instants `first token`, `finished` |
//!
//! A trace holds the token ids of all prompts and answers: treat it like them.

mod call;
mod read;
mod replay;
mod sink;
mod timeline;
mod tracer;
mod tracks;

#[cfg(feature = "plot")]
mod render;

pub use call::Call;
pub use read::{Header, TraceReader};
#[cfg(feature = "plot")]
pub use render::{RenderOptions, render};
pub use replay::{Difference, Replayed, Summary, replay};
pub use timeline::{Ending, Phase, Row, Span, Timeline};
pub use tracer::Tracer;

/// The format that is written and read. Raise it with every change that an older reader would get wrong.
pub const FORMAT: u32 = 1;

/// Name of the event that begins a trace.
const HEADER: &str = "octavo_trace";
/// Category of the events that a replay reads.
const CALL: &str = "call";

/// Where an event belongs: process and thread, in Chrome's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Track {
    pid: u64,
    tid: u64,
}

impl Track {
    const SUBMISSIONS: Self = Self { pid: 1, tid: 1 };
    const CALLS: Self = Self { pid: 1, tid: 2 };
    /// The process of [`Track::of`].
    const SEQUENCES: u64 = 2;

    /// The track of a sequence. Thread 0 is special to some viewers.
    fn of(seq: crate::base::SeqId) -> Self {
        Self { pid: Self::SEQUENCES, tid: seq.0.saturating_add(1) }
    }
}
