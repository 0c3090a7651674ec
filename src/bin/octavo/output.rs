//! Writing to stdout when its reader may have left: `octavo ... | head -1` ends the work, not the process with a panic.

use octavo::error::{Error, Result};
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Whether anybody still reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Reader {
    Present,
    Gone,
}

/// Writes `text` and flushes it.
///
/// # Errors
/// A full disk and the like; a closed pipe is no error.
pub fn write(text: &str) -> Result<Reader> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::Present),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Error::load(format!("cannot write the output: {error}"))),
    }
}

/// Writes `value` as one line of JSON.
///
/// # Errors
/// As [`write`].
pub fn write_json(value: &impl Serialize) -> Result<Reader> {
    let mut line =
        serde_json::to_string(value).map_err(|error| Error::bug(format!("a result has no JSON form: {error}")))?;
    line.push('\n');
    write(&line)
}

/// A duration in milliseconds with microseconds after the point.
pub fn milliseconds(duration: std::time::Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}
