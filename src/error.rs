//! The public error. Each message says what happened and what the user can do about it.

/// Broad classes, for callers that react by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An option or a request is impossible; correct it.
    Config,
    /// A model file is broken, missing or not supported.
    Load,
    /// The device or the KV pool is too small.
    Memory,
    /// The GPU went away.
    DeviceLost,
    /// The request was cancelled, or the engine shut down.
    Cancelled,
    /// Too many requests wait already; try again later.
    Busy,
    /// A defect of octavo.
    Bug,
}

/// What can go wrong, with a message for people.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of the given kind.
    pub fn new(kind: ErrorKind, message: impl std::fmt::Display) -> Self {
        Self { kind, message: message.to_string() }
    }

    /// An impossible option or request.
    pub fn config(message: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// A broken, missing or unsupported model file.
    pub fn load(message: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::Load, message)
    }

    /// Too little memory.
    pub fn memory(message: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::Memory, message)
    }

    /// A broken invariant of octavo itself.
    pub fn bug(message: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::Bug, message)
    }

    /// The class of this error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error with `context` put before its message.
    pub fn context(self, context: impl std::fmt::Display) -> Self {
        Self { kind: self.kind, message: format!("{context}: {}", self.message) }
    }
}
