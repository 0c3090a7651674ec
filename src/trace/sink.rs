//! Writes events as lines of a JSON array. A write that fails ends the trace, never the engine.

use super::{HEADER, Track};
use crate::error::{Error, Result};
use serde::{Serialize, Serializer};
use std::io::Write;
use std::time::Duration;

/// Bytes that are gathered for a write.
const BUFFER: usize = 64 * 1024;
/// A process that is killed loses at most so much of its trace.
const FLUSH_AFTER: Duration = Duration::from_millis(200);

/// An event in Chrome's words.
#[derive(Serialize)]
pub(super) struct Event<'a, A: Serialize> {
    /// What it is: `X` span, `B` and `E` its two ends, `i` instant, `C` counter, `M` about the file itself.
    pub ph: char,
    pub name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub cat: &'a str,
    pub pid: u64,
    pub tid: u64,
    pub ts: Micros,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dur: Option<Micros>,
    /// How far an instant reaches: `t` for its thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s: Option<char>,
    pub args: A,
}

/// A time in microseconds, with a fraction only where there is one.
pub(super) struct Micros(pub Duration);

impl Serialize for Micros {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match u64::try_from(self.0.as_micros()) {
            Ok(micros) if self.0.subsec_nanos().is_multiple_of(1000) => serializer.serialize_u64(micros),
            _ => serializer.serialize_f64(self.0.as_secs_f64() * 1e6),
        }
    }
}

/// The file that grows.
pub(super) struct Sink {
    out: Box<dyn Write + Send>,
    buffer: Vec<u8>,
    last_flush: Duration,
    closed: bool,
    /// Why nothing is written any more.
    fault: Option<Error>,
}

impl Sink {
    /// Begins the file with its header.
    pub fn new(out: Box<dyn Write + Send>, header: &impl Serialize) -> Result<Self> {
        let mut sink = Self { out, buffer: b"[\n".to_vec(), last_flush: Duration::ZERO, closed: false, fault: None };
        let event = Event {
            ph: 'M',
            name: HEADER,
            cat: "",
            pid: Track::CALLS.pid,
            tid: Track::CALLS.tid,
            ts: Micros(Duration::ZERO),
            dur: None,
            s: None,
            args: header,
        };
        sink.append(&event);
        sink.flush();
        sink.fault.take().map_or(Ok(sink), Err)
    }

    /// Whether there is any use in further events.
    pub fn is_open(&self) -> bool {
        !self.closed && self.fault.is_none()
    }

    /// A span that is over.
    pub fn span(&mut self, track: Track, name: &str, from: Duration, to: Duration, args: impl Serialize) {
        self.event('X', "", track, name, from, Some(to.saturating_sub(from)), args);
    }

    /// A span begins.
    pub fn begin(&mut self, track: Track, name: &str, at: Duration, args: impl Serialize) {
        self.event('B', "", track, name, at, None, args);
    }

    /// The span that began last on this track ends.
    pub fn end(&mut self, track: Track, name: &str, at: Duration, args: impl Serialize) {
        self.event('E', "", track, name, at, None, args);
    }

    /// Something happens.
    pub fn instant(&mut self, cat: &str, track: Track, name: &str, at: Duration, args: impl Serialize) {
        self.event('i', cat, track, name, at, None, args);
    }

    /// Numbers have these values from now on.
    pub fn counter(&mut self, name: &str, at: Duration, args: impl Serialize) {
        self.event('C', "", Track::SUBMISSIONS, name, at, None, args);
    }

    /// Says something about a track: its name, or its place among others.
    pub fn describe(&mut self, track: Track, name: &str, args: impl Serialize) {
        self.event('M', "", track, name, Duration::ZERO, None, args);
    }

    #[allow(clippy::too_many_arguments)] // private, and each caller above names what it leaves out
    fn event(
        &mut self,
        ph: char,
        cat: &str,
        track: Track,
        name: &str,
        at: Duration,
        dur: Option<Duration>,
        args: impl Serialize,
    ) {
        if !self.is_open() {
            return;
        }
        self.buffer.extend_from_slice(b",\n");
        let s = (ph == 'i').then_some('t');
        let (ts, dur) = (Micros(at), dur.map(Micros));
        self.append(&Event { ph, name, cat, pid: track.pid, tid: track.tid, ts, dur, s, args });
        if self.buffer.len() >= BUFFER {
            self.flush();
        }
    }

    /// Hands over what has been gathered if that was long ago.
    pub fn tick(&mut self, now: Duration) {
        if now.saturating_sub(self.last_flush) >= FLUSH_AFTER {
            self.last_flush = now;
            self.flush();
        }
    }

    /// Ends the file; once more does nothing.
    ///
    /// # Errors
    /// The write that failed, now or before.
    pub fn close(&mut self) -> Result<()> {
        if self.is_open() {
            self.buffer.extend_from_slice(b"\n]\n");
            self.flush();
            self.closed = true;
        }
        self.fault.clone().map_or(Ok(()), Err)
    }

    fn append(&mut self, event: &impl Serialize) {
        if let Err(error) = serde_json::to_writer(&mut self.buffer, event) {
            self.fail(&Error::bug(format!("an event of a trace has no JSON form: {error}")));
        }
    }

    fn flush(&mut self) {
        let written = self.out.write_all(&self.buffer).and_then(|()| self.out.flush());
        self.buffer.clear();
        if let Err(error) = written {
            self.fail(&Error::config(format!(
                "the trace cannot be written ({error}); it ends here, and everything else goes on"
            )));
        }
    }

    fn fail(&mut self, error: &Error) {
        if self.fault.is_none() {
            log::error!("{error}");
            self.fault = Some(error.clone());
        }
    }
}
