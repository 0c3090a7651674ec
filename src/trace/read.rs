//! Reads a trace line by line, and says of a file that is none why not.

use super::{FORMAT, HEADER};
use crate::error::{Error, Result};
use crate::runner::Capacity;
use crate::sched::SchedulerConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

/// A header is a few hundred bytes. More is another kind of file, which need not be read to its first line end.
const MAX_HEADER: u64 = 1 << 20;

/// What a trace says about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// See [`FORMAT`].
    pub format: u32,
    /// The octavo that wrote it.
    pub version: String,
    /// Of the scheduler.
    pub config: SchedulerConfig,
    /// Of its runner.
    pub capacity: Capacity,
}

/// One event of the file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Event {
    pub ph: char,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub cat: String,
    #[serde(default)]
    pub pid: u64,
    #[serde(default)]
    pub tid: u64,
    /// Microseconds.
    #[serde(default)]
    pub ts: f64,
    #[serde(default)]
    pub dur: f64,
    #[serde(default)]
    pub args: Value,
}

impl Event {
    /// When it happened, in seconds.
    pub fn seconds(&self) -> f64 {
        self.ts / 1e6
    }

    /// When it happened.
    pub fn at(&self) -> Duration {
        Duration::try_from_secs_f64(self.seconds()).unwrap_or_default()
    }

    /// A whole number among the arguments.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.args.get(name)?.as_u64()
    }
}

/// Reads the events of a trace in the order of the file.
pub struct TraceReader {
    input: Box<dyn BufRead>,
    name: String,
    header: Header,
    line: Vec<u8>,
    line_number: usize,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// More may follow.
    Open,
    /// The file is complete.
    Closed,
    /// The file stops in the middle.
    Torn,
}

impl TraceReader {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// It cannot be read, is no trace, or is one of another format.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| Error::load(format!("{name} cannot be opened: {error}")))?;
        Self::new(Box::new(BufReader::new(file)), name)
    }

    /// Reads the header from `input`, which messages call `name`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn new(mut input: Box<dyn BufRead>, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let mut head = Vec::new();
        let unreadable = |error: std::io::Error| Error::load(format!("{name} cannot be read: {error}"));
        let mut limited = input.by_ref().take(MAX_HEADER);
        limited.read_until(b'\n', &mut head).map_err(unreadable)?;
        if head.trim_ascii() != b"[" {
            let what = if head.is_empty() { "it is empty" } else { "it does not begin like one" };
            return Err(Error::load(format!("{name} is no trace of octavo: {what}; `--trace FILE` writes one")));
        }
        head.clear();
        limited.read_until(b'\n', &mut head).map_err(unreadable)?;
        let header = parse_header(&head, &name)?;
        Ok(Self { input, name, header, line: Vec::new(), line_number: 2, end: End::Open })
    }

    /// What the trace says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Whether the file stopped in the middle, as one does whose process was killed. Known once all events were read.
    pub fn is_truncated(&self) -> bool {
        self.end == End::Torn
    }

    /// The name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next event; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Event>> {
        while self.end == End::Open {
            self.line.clear();
            self.line_number += 1;
            let read = self.input.read_until(b'\n', &mut self.line);
            read.map_err(|error| Error::load(format!("{} cannot be read further: {error}", self.name)))?;
            let whole = self.line.ends_with(b"\n");
            let line = self.line.trim_ascii();
            if self.line.is_empty() {
                self.end = End::Torn;
            } else if line == b"]" {
                self.end = End::Closed;
            } else if !line.is_empty() {
                match serde_json::from_slice(line.strip_suffix(b",").unwrap_or(line)) {
                    Ok(event) => return Ok(Some(event)),
                    Err(_) if !whole => self.end = End::Torn,
                    Err(error) => return Err(self.broken(error)),
                }
            }
        }
        Ok(None)
    }

    /// The line that was read last is wrong.
    pub(super) fn broken(&self, why: impl std::fmt::Display) -> Error {
        Error::load(format!("{}, line {}: {why}; the trace is damaged, record it again", self.name, self.line_number))
    }
}

fn parse_header(line: &[u8], name: &str) -> Result<Header> {
    let line = line.trim_ascii();
    let event: Option<Event> = serde_json::from_slice(line.strip_suffix(b",").unwrap_or(line)).ok();
    let Some(event) = event.filter(|event| event.name == HEADER) else {
        return Err(Error::load(format!(
            "{name} is no trace of octavo: its second line is not the header that octavo writes; `--trace FILE` writes one"
        )));
    };
    let version = event.args.get("version").and_then(Value::as_str).unwrap_or("unknown").to_owned();
    let format = event.number("format");
    if format != Some(u64::from(FORMAT)) {
        let format = format.map_or("unknown".into(), |format| format.to_string());
        return Err(Error::load(format!(
            "{name} is a trace of format {format}, written by octavo {version}, but this octavo {} reads format {FORMAT}; \
             use the octavo that wrote it, or record it again",
            env!("CARGO_PKG_VERSION")
        )));
    }
    serde_json::from_value(event.args).map_err(|error| {
        Error::load(format!(
            "{name} was written by octavo {version}, and its scheduler had other options than that of this octavo {}: \
             {error}; use the octavo that wrote it, or record it again",
            env!("CARGO_PKG_VERSION")
        ))
    })
}
