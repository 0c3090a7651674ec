//! Losing the device: all running requests go back to waiting, a new runner is built, and their streams go on.

use super::prepare::NOTHING_PREPARED;
use super::thread::{Next, Worker};
use crate::error::{Error, ErrorKind, Result};
use crate::runner::Capacity;
use crate::trace::Call;
use std::time::Instant;

impl Worker {
    /// Replaces a lost runner.
    ///
    /// # Errors
    /// No factory, or it failed too often; of kind [`ErrorKind::DeviceLost`].
    pub(super) fn recover(&mut self, why: &str) -> Result<Next> {
        self.runner = None;
        self.flights.clear();
        self.scheduler.requeue_all(&mut self.events);
        self.trace(Call::Requeue);
        self.emit();
        let mut reason = why.to_owned();
        loop {
            let policy = self.settings.rebuild;
            if self.rebuild.is_none() {
                return Err(lost(format!("the GPU device was lost ({reason}), and this engine cannot build another")));
            }
            if self.losses >= policy.attempts {
                return Err(lost(format!(
                    "the GPU device was lost and did not come back in {} attempts ({reason}); restart the program, and \
                     try a smaller model or `--steps-per-submit 1` if it happens again",
                    policy.attempts
                )));
            }
            let pause = policy.first_pause * 2u32.saturating_pow(self.losses);
            self.losses += 1;
            log::warn!("{reason}; building a new runner (attempt {} of {})", self.losses, policy.attempts);
            if self.serve_commands_until(Instant::now() + pause) == Next::Stop {
                return Ok(Next::Stop);
            }
            let Some(factory) = &mut self.rebuild else { continue };
            match factory() {
                Ok(runner) if holds(runner.capacity(), self.capacity) => {
                    self.runner = Some(runner);
                    self.prepared = NOTHING_PREPARED;
                    self.shared.metrics().recoveries += 1;
                    return Ok(Next::GoOn);
                }
                Ok(runner) => {
                    let (new, old) = (runner.capacity(), self.capacity);
                    reason = format!("the new device is smaller: {new:?}, before {old:?}");
                }
                Err(error) => reason = error.to_string(),
            }
        }
    }
}

fn lost(message: String) -> Error {
    Error::new(ErrorKind::DeviceLost, message)
}

/// Whether `new` can go on where `old` was: the scheduler's limits stay those it was made with.
fn holds(new: Capacity, old: Capacity) -> bool {
    new.block_count >= old.block_count
        && new.slot_count >= old.slot_count
        && new.max_batched_tokens >= old.max_batched_tokens
        && new.max_model_len >= old.max_model_len
        && new.max_steps >= old.max_steps
        && new.host_blocks >= old.host_blocks
        && new.logprob_entries >= old.logprob_entries
        && new.window == old.window
        && new.vocab_size == old.vocab_size
}
