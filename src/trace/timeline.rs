//! A trace as spans in time: who did what when, and how full the memory was. What a drawing needs, and no more. Times are
//! seconds since the first event.

use super::read::Event;
use super::{Header, TraceReader, Track};
use crate::error::Result;
use rustc_hash::FxHashMap;

/// What a sequence was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It had no slot yet.
    Waiting,
    /// Its prompt was computed.
    Prefill,
    /// What it had lost was computed again.
    Recompute,
    /// Tokens came.
    Decode,
    /// It gave way, and its KV was dropped.
    Preempted,
    /// It gave way, and its KV was on the host.
    SwappedOut,
}

impl Phase {
    /// In the order of a legend.
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Prefill, Self::Decode, Self::Preempted, Self::Recompute, Self::SwappedOut];

    /// The name of its spans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Prefill => "prefill",
            Self::Recompute => "recompute",
            Self::Decode => "decode",
            Self::Preempted => "preempted",
            Self::SwappedOut => "swapped out",
        }
    }

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.name() == name)
    }
}

/// A phase from one time to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// What was done.
    pub phase: Phase,
    /// Since when.
    pub from: f64,
    /// Until when.
    pub to: f64,
    /// Known tokens of a chunk, tokens of a decode span; 0 of others.
    pub tokens: u64,
}

/// How a sequence ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// When.
    pub at: f64,
    /// In a word.
    pub reason: String,
    /// Generated tokens.
    pub tokens: u64,
}

/// One sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its number.
    pub seq: u64,
    /// The call it belongs to.
    pub request: u64,
    /// By time. A sequence that the trace leaves alive has its last span until the end.
    pub spans: Vec<Span>,
    /// `None` if it was alive at the end of the trace.
    pub ending: Option<Ending>,
    /// The span under way while the trace is read.
    open: Option<(Phase, f64)>,
}

/// What the device did in one submission.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Submission {
    /// Since when.
    pub from: f64,
    /// Until when.
    pub to: f64,
    /// Known tokens in it.
    pub prefill_tokens: u64,
    /// Rows that decode.
    pub decode_rows: u64,
}

/// Numbers since a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// KV blocks in use.
    pub used: u64,
    /// KV blocks that can be found by their content, in use or not.
    pub cached: u64,
    /// Sequences with a slot.
    pub running: u64,
    /// Sequences without.
    pub waiting: u64,
}

/// A whole trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// What the trace says about itself.
    pub header: Header,
    /// By arrival.
    pub rows: Vec<Row>,
    /// By time.
    pub submissions: Vec<Submission>,
    /// By time; each holds until the next.
    pub counts: Vec<(f64, Counts)>,
    /// Time of the last event.
    pub end: f64,
    /// Generated tokens.
    pub tokens: u64,
    /// Times that KV was dropped.
    pub preemptions: u64,
    /// Times that KV went to the host.
    pub swaps: u64,
    /// The file stopped in the middle.
    pub truncated: bool,
}

impl Timeline {
    /// Reads a trace to its end.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn read(reader: &mut TraceReader) -> Result<Self> {
        let mut timeline = Self {
            header: reader.header().clone(),
            rows: Vec::new(),
            submissions: Vec::new(),
            counts: Vec::new(),
            end: 0.0,
            tokens: 0,
            preemptions: 0,
            swaps: 0,
            truncated: false,
        };
        let (mut places, mut start) = (FxHashMap::default(), None);
        while let Some(mut event) = reader.next()? {
            if event.ph == 'M' || !event.ts.is_finite() || !event.dur.is_finite() {
                continue;
            }
            // Whatever is written first is a call, and nothing began before it.
            event.ts -= *start.get_or_insert(event.ts);
            timeline.take(&event, &mut places);
        }
        timeline.truncated = reader.is_truncated();
        for row in &mut timeline.rows {
            row.close(timeline.end, 0);
            // Chunks are written when they end, decode spans when they begin.
            row.spans.sort_by(|a, b| a.from.total_cmp(&b.from));
        }
        Ok(timeline)
    }

    fn take(&mut self, event: &Event, places: &mut FxHashMap<u64, usize>) {
        let (from, to) = (event.seconds(), event.seconds() + event.dur / 1e6);
        self.end = self.end.max(to);
        if event.pid == Track::SEQUENCES {
            self.take_sequence(event, places);
        } else if event.ph == 'X' && event.tid == Track::SUBMISSIONS.tid {
            let number = |name| event.number(name).unwrap_or(0);
            let (prefill_tokens, decode_rows) = (number("prefill_tokens"), number("decode_rows"));
            self.tokens += number("tokens");
            self.submissions.push(Submission { from, to, prefill_tokens, decode_rows });
        } else if event.ph == 'C' {
            let none = Counts { used: 0, cached: 0, running: 0, waiting: 0 };
            let mut now = self.counts.last().map_or(none, |(_, counts)| *counts);
            let number = |name, before| event.number(name).unwrap_or(before);
            match event.name.as_str() {
                "KV blocks" => (now.used, now.cached) = (number("used", now.used), number("cached", now.cached)),
                "sequences" => {
                    (now.running, now.waiting) = (number("running", now.running), number("waiting", now.waiting));
                }
                _ => return,
            }
            match self.counts.last_mut() {
                Some((at, counts)) if *at == from => *counts = now,
                _ => self.counts.push((from, now)),
            }
        }
    }

    fn take_sequence(&mut self, event: &Event, places: &mut FxHashMap<u64, usize>) {
        let at = event.seconds();
        let place = *places.entry(event.tid).or_insert_with(|| {
            let seq = event.tid.saturating_sub(1);
            let request = event.number("request").unwrap_or(seq);
            self.rows.push(Row { seq, request, spans: Vec::new(), ending: None, open: None });
            self.rows.len() - 1
        });
        let row = &mut self.rows[place];
        let phase = Phase::of(&event.name);
        match (event.ph, phase) {
            ('B', Some(phase)) => {
                row.close(at, 0);
                row.open = Some((phase, at));
                self.preemptions += u64::from(phase == Phase::Preempted);
                self.swaps += u64::from(phase == Phase::SwappedOut);
            }
            ('E', Some(_)) => row.close(at, event.number("tokens").unwrap_or(0)),
            ('X', Some(phase)) => {
                let tokens = event.number("len").unwrap_or(0);
                row.spans.push(Span { phase, from: at, to: at + event.dur / 1e6, tokens });
            }
            ('i', None) if event.name == "finished" => {
                let reason =
                    event.args.get("reason").and_then(|reason| reason.as_str()).unwrap_or("unknown").to_owned();
                row.ending = Some(Ending { at, reason, tokens: event.number("tokens").unwrap_or(0) });
            }
            _ => {}
        }
    }
}

impl Row {
    fn close(&mut self, at: f64, tokens: u64) {
        if let Some((phase, from)) = self.open.take() {
            self.spans.push(Span { phase, from, to: at.max(from), tokens });
        }
    }
}
