//! When steps are prepared.

use crate::error::{Error, Result};

/// When the pipelines of usual steps are compiled and run once, so that no request waits for that. No token depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum WarmUp {
    /// Before the engine starts.
    #[default]
    Load,
    /// Those of one short request before the engine starts, which so starts sooner; all others, and the bundles of all usual
    /// steps, whenever the engine has nothing to do, a small piece at a time.
    Idle,
}

impl WarmUp {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Load, Self::Idle];

    /// Lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Idle => "idle",
        }
    }
}

impl std::str::FromStr for WarmUp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|when| when.name() == text);
        known.ok_or_else(|| Error::config(format!("warm_up is `{text}`, but must be load or idle")))
    }
}
