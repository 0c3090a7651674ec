//! What the engine does while nobody wants anything: it lets the runner prepare for what may come, a small piece at a time, so
//! that whoever comes waits for no more than that piece.

use super::thread::Worker;
use crate::runner::{Prepared, RunError};

/// Of a runner that was not asked yet.
pub(super) const NOTHING_PREPARED: Prepared = Prepared { done: 0, total: 1 };

impl Worker {
    /// Whether there is nothing else to do, and something is left to prepare.
    pub(super) fn may_prepare(&self) -> bool {
        !self.prepared.is_complete() && !self.scheduler.has_work()
    }

    /// One piece.
    ///
    /// # Errors
    /// The device is gone.
    pub(super) fn prepare(&mut self) -> Result<(), RunError> {
        let runner = self.runner.as_mut().ok_or_else(|| RunError::DeviceLost("no runner".into()))?;
        let before = std::mem::replace(&mut self.prepared, runner.prepare()?);
        let Prepared { done, total } = self.prepared;
        if done != before.done {
            log::debug!("prepared {done} of {total} usual steps");
        }
        Ok(())
    }
}
